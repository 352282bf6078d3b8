// Property tests with rapidcheck: a law is tried on random values, and what breaks it is made
// small. The values are the same in every run, so that a build does not fail by chance;
// RC_PARAMS="seed=7 max_success=10000" tries others.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>

namespace nibble {
namespace {

[[maybe_unused]] const int kParameters = setenv("RC_PARAMS", "seed=20 max_success=200", 0);

}  // namespace
}  // namespace nibble
