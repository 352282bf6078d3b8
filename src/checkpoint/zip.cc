#include "checkpoint/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/file.h"
#include "checkpoint/name_map.h"

namespace nibble::checkpoint {
namespace {

constexpr uint64_t kMaxDirectory = uint64_t{128} << 20;
constexpr size_t kMaxEntries = (size_t{1} << 20) + 1024;  // a tensor each, and a few more

constexpr uint64_t kEndBytes = 22, kMaxComment = 65535, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr uint64_t kEntryBytes = 46, kLocalBytes = 30;
constexpr std::string_view kEnd{"PK\5\6", 4}, kLocator{"PK\6\7", 4}, kEnd64{"PK\6\6", 4};
constexpr std::string_view kEntry{"PK\1\2", 4}, kLocal{"PK\3\4", 4};
constexpr uint64_t kIn64 = 0xffffffff;  // a 32-bit field whose value stands in the extra field

// A little-endian number at `at`. Precondition: it lies inside.
template <class T>
uint64_t number(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

class ZipReader {
 public:
  ZipReader(const ReadAt& read, uint64_t size, std::string_view where)
      : read_(read), size_(size), where_(where) {}

  Result<std::vector<ZipEntry>> run() {
    NIBBLE_ASSIGN(const std::string directory, read_directory());
    std::vector<ZipEntry> entries;
    NameMap<bool> seen;
    size_t at = 0;
    for (uint64_t i = 0; i < count_; ++i) {
      NIBBLE_ASSIGN(ZipEntry entry, read_entry(directory, at));
      entries.push_back(std::move(entry));
    }
    seen.reserve(entries.size());
    for (const ZipEntry& entry : entries) {
      if (!seen.emplace(entry.name, true).second) {
        return broken(fmt::format("its entry \"{}\" stands twice", shown(entry.name)));
      }
    }
    return entries;
  }

 private:
  Failure broken(std::string_view what) const {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: the zip archive is damaged: {}; download the "
                                                 "file again",
                                                 where_, what));
  }

  Result<std::string> bytes_at(uint64_t offset, uint64_t bytes, std::string_view what) const {
    if (offset > size_ || bytes > size_ - offset) {
      return broken(fmt::format("{} would end behind the file's {} bytes", what, size_));
    }
    std::string out(bytes, '\0');
    NIBBLE_TRY(read_(offset, reinterpret_cast<std::byte*>(out.data()), bytes));
    return out;
  }

  // Finds the end record from behind and fills count_.
  Result<std::string> read_directory() {
    const uint64_t tail_bytes = std::min(size_, kEndBytes + kMaxComment + kLocatorBytes);
    NIBBLE_ASSIGN(const std::string tail, bytes_at(size_ - tail_bytes, tail_bytes, "its end"));
    size_t at = tail.size() < kEndBytes ? tail.npos : tail.rfind(kEnd, tail.size() - kEndBytes);
    if (at == tail.npos) return broken("it has no end record, so it was cut short");
    const std::string_view end = std::string_view(tail).substr(at);
    uint64_t disks = number<uint16_t>(end, 4), offset = number<uint32_t>(end, 16);
    uint64_t bytes = number<uint32_t>(end, 12);
    count_ = number<uint16_t>(end, 10);
    if (at >= kLocatorBytes && tail.compare(at - kLocatorBytes, 4, kLocator) == 0) {
      const uint64_t where64 = number<uint64_t>(tail, at - kLocatorBytes + 8);
      NIBBLE_ASSIGN(const std::string end64, bytes_at(where64, kEnd64Bytes, "its 64-bit end"));
      if (!std::string_view(end64).starts_with(kEnd64)) {
        return broken("its 64-bit end record is not where it should be");
      }
      disks = number<uint32_t>(end64, 16);
      count_ = number<uint64_t>(end64, 32);
      bytes = number<uint64_t>(end64, 40);
      offset = number<uint64_t>(end64, 48);
    }
    if (disks != 0) return broken("it is one part of several");
    if (bytes > kMaxDirectory || count_ > kMaxEntries) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: a zip archive of {} entries, whose names take {} bytes, is more "
                              "than nibble reads ({} entries, {} bytes)",
                              where_, count_, bytes, kMaxEntries, kMaxDirectory));
    }
    return bytes_at(offset, bytes, "its directory");
  }

  Result<ZipEntry> read_entry(std::string_view directory, size_t& at) const {
    if (directory.size() - at < kEntryBytes || directory.substr(at, 4) != kEntry) {
      return broken("its directory ends too early");
    }
    const std::string_view fixed = directory.substr(at, kEntryBytes);
    const uint64_t flags = number<uint16_t>(fixed, 8), method = number<uint16_t>(fixed, 10);
    const size_t name_bytes = number<uint16_t>(fixed, 28), extra = number<uint16_t>(fixed, 30);
    const size_t all = kEntryBytes + name_bytes + extra + number<uint16_t>(fixed, 32);
    if (directory.size() - at < all) return broken("its directory ends too early");
    ZipEntry out;
    out.name = directory.substr(at + kEntryBytes, name_bytes);
    uint64_t packed = number<uint32_t>(fixed, 20), local = number<uint32_t>(fixed, 42);
    out.bytes = number<uint32_t>(fixed, 24);
    NIBBLE_TRY(widen(directory.substr(at + kEntryBytes + name_bytes, extra),
                     {&out.bytes, &packed, &local}, out.name));
    at += all;
    if (method != 0 || (flags & 1) != 0 || packed != out.bytes) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: {}: this entry of the zip archive is {}; torch.save stores "
                      "entries as they are, and only such archives are read",
                      where_, shown(out.name), (flags & 1) != 0 ? "encrypted" : "compressed"));
    }
    NIBBLE_ASSIGN(const std::string header, bytes_at(local, kLocalBytes, shown(out.name)));
    if (!std::string_view(header).starts_with(kLocal)) {
      return broken(fmt::format("\"{}\" is not where the directory says", shown(out.name)));
    }
    out.offset = local + kLocalBytes + number<uint16_t>(header, 26) + number<uint16_t>(header, 28);
    if (out.offset > size_ || out.bytes > size_ - out.offset) {
      return broken(
          fmt::format("\"{}\" would end behind the file's {} bytes", shown(out.name), size_));
    }
    return out;
  }

  // The 64-bit values of those fields that were too small, in this order, from the extra field.
  Result<void> widen(std::string_view extra, std::initializer_list<uint64_t*> fields,
                     std::string_view name) const {
    std::string_view wide;
    while (extra.size() >= 4) {
      const uint64_t id = number<uint16_t>(extra, 0), length = number<uint16_t>(extra, 2);
      if (length > extra.size() - 4) break;
      if (id == 1) wide = extra.substr(4, length);
      extra.remove_prefix(4 + length);
    }
    for (uint64_t* field : fields) {
      if (*field != kIn64) continue;
      if (wide.size() < 8) {
        return broken(fmt::format("the size of \"{}\" is missing", shown(name)));
      }
      *field = number<uint64_t>(wide, 0);
      wide.remove_prefix(8);
    }
    return {};
  }

  const ReadAt& read_;
  uint64_t size_;
  std::string_view where_;
  uint64_t count_ = 0;
};

}  // namespace

Result<std::vector<ZipEntry>> read_zip(const ReadAt& read, uint64_t file_size,
                                       std::string_view where) {
  return ZipReader(read, file_size, where).run();
}

}  // namespace nibble::checkpoint
