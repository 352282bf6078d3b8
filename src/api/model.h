// What a nibble::Model holds.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "api/options.h"
#include "api/tokenizer.h"
#include "checkpoint/checkpoint.h"
#include "device/stream.h"
#include "kernels/ops.h"
#include "layers/decoder.h"
#include "nibble/nibble.h"

namespace nibble {

struct Model::Impl {
  checkpoint::Checkpoint checkpoint;
  api::ParsedOptions options;
  Plan plan;
  std::unique_ptr<device::Stream> stream;
  kernels::Ops ops;
  layers::Decoder decoder;
  std::shared_ptr<const Tokenizer::Impl> tokenizer_impl;
  std::unique_ptr<Tokenizer> tokenizer;
  std::string tokenizer_error;
  std::vector<int32_t> eos;
  int64_t ctx = 0;
  std::vector<std::string> notes;
};

namespace api {

// top_k as generation_config.json says it. Servers of the field write -1 for all, which is 0.
int32_t top_k_said(double number);

// Whose memory ran out, and what would need less ("" if nothing is known that would).
Failure out_of_memory(const std::bad_alloc& error, std::string_view what_needs_less);

}  // namespace api
}  // namespace nibble
