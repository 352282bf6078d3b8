// What a nibble::Model holds.
#pragma once

#include <memory>
#include <string>
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

}  // namespace nibble
