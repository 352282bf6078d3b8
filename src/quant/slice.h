// A rank's part of a stored tensor, from the shard axes that a method declares. Used by load/,
// which alone knows the rank; law: joining the slices of all ranks gives the tensor back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nibble/result.h"
#include "quant/method.h"
#include "tensor/tensor.h"

namespace nibble::quant {

enum class Axis : uint8_t { kN, kK };  // outputs, inputs

// Elements [begin, end) of an axis of a layer.
struct AxisRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The share of `rank` when `size` outputs (or inputs) are dealt out evenly. Error: they cannot be.
Result<AxisRange> rank_range(Axis axis, int64_t size, int64_t rank, int64_t ranks);

// Indices [begin[d], begin[d] + shape[d]) of each dimension d of a stored tensor. For a block type
// the last dimension counts elements.
struct StoredSlice {
  tensor::Shape begin;
  tensor::Shape shape;
};

// What a rank that keeps `range` of an axis of `axis_size` elements keeps of the stored tensor.
// Dimensions of 1 may be absent from the stored shape, or extra, as WeightSpec::shape says. Errors
// name the suffix: a cut inside a word, group or block; a stored shape that does not fit the spec.
Result<StoredSlice> slice_of(const WeightSpec& spec, tensor::DType dtype,
                             const tensor::Shape& stored, Axis axis, int64_t axis_size,
                             AxisRange range);

// A stored tensor in the shape that slice_of cuts: the spec's own when it is flattened.
tensor::TensorView in_declared_shape(const WeightSpec& spec, tensor::TensorView stored);

// The bytes of a slice, and the slice copied to `out`. Precondition: slice_of gave it for this
// tensor, and byte_count(dtype, shape) is what the tensor has.
uint64_t slice_bytes(tensor::DType dtype, const StoredSlice& slice);
void copy_slice(const tensor::TensorView& stored, const StoredSlice& slice, std::byte* out);

}  // namespace nibble::quant
