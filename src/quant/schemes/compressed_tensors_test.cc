#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {
TEST(compressed_tensors, x) {}
}  // namespace
}  // namespace nibble::quant
