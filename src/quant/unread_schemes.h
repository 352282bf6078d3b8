// Formats that are known by name and not read, with what to say about them. A format that comes to
// be read loses its line here and gets a scheme.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "quant/method.h"

namespace nibble::quant {

// Why a checkpoint is not read that names this quant_method (lower case, '_' as '-'), or that names
// none and stores what only one of these formats stores. Nothing for everything else.
std::optional<std::string> why_unread(std::string_view method, const TensorLookup& tensors);

}  // namespace nibble::quant
