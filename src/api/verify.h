// The parts of nibble::verify that read no tensor.
#pragma once

#include "checkpoint/checkpoint.h"
#include "load/plan.h"
#include "nibble/nibble.h"

namespace nibble::api {

// The tokenizer, the chat template and generation_config.json: whether they can be read, and agree
// with the model.
void verify_documents(const checkpoint::Checkpoint& checkpoint, const load::LoadPlan& plan,
                      VerifyReport& report);

// SHA-256 of the weight files for which a hub's download left one: in the name of the file that a
// cache's link leads to, or in .cache/huggingface/download/<file>.metadata. Bytes read are told to
// `progress`, which gives false to cancel.
Result<void> verify_checksums(const checkpoint::Checkpoint& checkpoint, VerifyReport& report,
                              const std::function<bool(uint64_t bytes)>& progress);
uint64_t checksum_bytes(const checkpoint::Checkpoint& checkpoint);  // that it will read

}  // namespace nibble::api
