#include "checkpoint/zip.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/torch_test_files.h"

namespace nibble::checkpoint {
namespace {

Result<std::vector<ZipEntry>> read(const std::string& bytes) {
  return read_zip(
      [&](uint64_t offset, std::byte* out, uint64_t count) -> Result<void> {
        EXPECT_LE(offset + count, bytes.size());
        std::memcpy(out, bytes.data() + offset, count);
        return {};
      },
      bytes.size(), "z.bin");
}

std::string error_of(const std::string& bytes) {
  const auto entries = read(bytes);
  return entries ? "no error" : entries.error().message;
}

TEST(zip, entries_are_found_in_32_and_in_64_bit_archives) {
  for (const bool wide : {false, true}) {
    const std::string bytes = zip_bytes({{"a", "first"}, {"b/c", ""}, {"d", "third"}}, wide);
    const auto entries = read(bytes);
    ASSERT_TRUE(entries) << entries.error().message;
    ASSERT_EQ(entries->size(), 3u);
    EXPECT_EQ((*entries)[1].name, "b/c");
    EXPECT_EQ(bytes.substr((*entries)[0].offset, (*entries)[0].bytes), "first");
    EXPECT_EQ(bytes.substr((*entries)[2].offset, (*entries)[2].bytes), "third");
  }
}

TEST(zip, what_is_compressed_is_refused) {
  EXPECT_EQ(error_of(zip_bytes({{"a", "x"}}, false, 8)),
            "z.bin: a: this entry of the zip archive is compressed; torch.save stores entries as "
            "they are, and only such archives are read");
}

TEST(zip, what_is_cut_short_or_lies_is_refused) {
  const std::string good = zip_bytes({{"a", "x"}, {"b", "y"}});
  EXPECT_EQ(error_of(good.substr(0, good.size() - 5)),
            "z.bin: the zip archive is damaged: it has no end record, so it was cut short; "
            "download the file again");
  EXPECT_EQ(error_of(zip_bytes({{"a", "x"}, {"a", "y"}})),
            "z.bin: the zip archive is damaged: its entry \"a\" stands twice; download the file "
            "again");
  std::string moved = good;
  moved.replace(good.size() - 6, 4, raw<uint32_t>(1'000'000));
  EXPECT_EQ(error_of(moved),
            "z.bin: the zip archive is damaged: its directory would end behind the file's 186 "
            "bytes; download the file again");
  std::string more = good;
  more.replace(good.size() - 12, 2, raw<uint16_t>(3));
  EXPECT_EQ(error_of(more),
            "z.bin: the zip archive is damaged: its directory ends too early; download the file "
            "again");
  std::string longer = good;
  const size_t entry = good.find("PK\1\2");
  longer.replace(entry + 20, 8, raw<uint32_t>(500) + raw<uint32_t>(500));
  EXPECT_EQ(error_of(longer),
            "z.bin: the zip archive is damaged: \"a\" would end behind the file's 186 bytes; "
            "download the file again");
  std::string elsewhere = good;
  elsewhere.replace(entry + 42, 4, raw<uint32_t>(3));
  EXPECT_EQ(error_of(elsewhere),
            "z.bin: the zip archive is damaged: \"a\" is not where the directory says; download "
            "the file again");
  std::string many = zip_bytes({{"a", "x"}}, true);
  many.replace(many.find("PK\6\6") + 32, 8, raw<uint64_t>(uint64_t{1} << 40));
  EXPECT_EQ(error_of(many),
            "z.bin: a zip archive of 1099511627776 entries, whose names take 75 bytes, is more "
            "than nibble reads (1049600 entries, 134217728 bytes)");
}

}  // namespace
}  // namespace nibble::checkpoint
