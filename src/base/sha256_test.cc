#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace nibble::base {
namespace {

std::string sha256(std::string_view text, size_t piece = 1 << 20) {
  Sha256 hash;
  while (!text.empty()) {
    const std::string_view some = text.substr(0, piece);
    hash.update(std::as_bytes(std::span(some)));
    text.remove_prefix(some.size());
  }
  return hash.hex();
}

// The examples of FIPS 180-4's companion, and lengths around the end of a block (computed with
// coreutils' sha256sum).
TEST(sha256, digests_are_those_of_the_standard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, the_digest_does_not_depend_on_the_pieces) {
  const std::string text(1000, 'x');
  for (const size_t piece : {1, 7, 55, 56, 63, 64, 65, 129}) {
    EXPECT_EQ(sha256(text, piece), sha256(text)) << piece;
  }
}

}  // namespace
}  // namespace nibble::base
