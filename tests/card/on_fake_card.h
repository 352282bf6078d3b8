// For tests with the card that is not there (fake_card.cc).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace nibble {

class OnFakeCard : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NIBBLE_CUDA_LIBRARY", NIBBLE_FAKE_CARD_LIBRARY, 1);
    is("");
  }
  void TearDown() override {
    unsetenv("NIBBLE_CUDA_LIBRARY");
    unsetenv("NIBBLE_FAKE_CARD");
  }
  // "free=10;major=8": what the card is from now on.
  static void is(const std::string& settings) { setenv("NIBBLE_FAKE_CARD", settings.c_str(), 1); }
  // One of the library's own functions.
  template <class Function>
  static Function* function(const char* name) {
    return reinterpret_cast<Function*>(dlsym(dlopen(NIBBLE_FAKE_CARD_LIBRARY, RTLD_NOW), name));
  }
};

}  // namespace nibble
