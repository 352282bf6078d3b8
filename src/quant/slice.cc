#include "quant/slice.h"

#include <fmt/format.h>

#include <cstring>

#include "quant/stored.h"

namespace nibble::quant {
namespace {

const char* plural(Axis axis) { return axis == Axis::kN ? "outputs" : "inputs"; }
const char* singular(Axis axis) { return axis == Axis::kN ? "output" : "input"; }

// The stored dimension that is dimension `dim` of the spec; -1 when it is one that may be absent.
// Precondition: the shapes are equal but for dimensions of 1.
int stored_dim(const tensor::Shape& spec, int dim, const tensor::Shape& stored) {
  if (spec[static_cast<size_t>(dim)] == 1) return -1;
  int before = 0;  // larger dimensions in front of it
  for (int d = 0; d < dim; ++d) before += spec[static_cast<size_t>(d)] != 1;
  for (size_t d = 0; d < stored.size(); ++d) {
    if (stored[d] != 1 && before-- == 0) return static_cast<int>(d);
  }
  return -1;
}

Failure inside_unit(const WeightSpec& spec, Axis axis, int64_t cut, int64_t unit) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: a cut at {} {} is not at a multiple of {}, the {} that lie in one "
                          "piece; use fewer ranks",
                          spec.suffix, singular(axis), cut, unit, plural(axis)));
}

}  // namespace

Result<AxisRange> rank_range(Axis axis, int64_t size, int64_t rank, int64_t ranks) {
  if (ranks <= 0 || rank < 0 || rank >= ranks || size % ranks != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} {} cannot be dealt out evenly to {} ranks",
                                                     size, plural(axis), ranks));
  }
  const int64_t share = size / ranks;
  return AxisRange{rank * share, (rank + 1) * share};
}

Result<StoredSlice> slice_of(const WeightSpec& spec, tensor::DType dtype,
                             const tensor::Shape& stored, Axis axis, int64_t axis_size,
                             AxisRange range) {
  if (spec.flattened && stored != spec.shape &&
      tensor::element_count(stored) == tensor::element_count(spec.shape)) {
    return slice_of(spec, dtype, spec.shape, axis, axis_size, range);
  }
  if (squeezed(spec.shape) != squeezed(stored)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected {}, found {}", spec.suffix, tensor::to_string(spec.shape),
                            tensor::to_string(stored)));
  }
  StoredSlice out{tensor::Shape(stored.size(), 0), stored};
  const ShardAxis& shard = axis == Axis::kN ? spec.along_n : spec.along_k;
  if (shard.dim < 0 || (range.begin == 0 && range.end == axis_size)) return out;
  for (int64_t cut : {range.begin, range.end}) {
    if (cut != axis_size && cut % shard.units != 0)
      return inside_unit(spec, axis, cut, shard.units);
  }
  const int dim = stored_dim(spec.shape, shard.dim, stored);
  if (dim < 0) return out;  // one index covers the axis
  const auto d = static_cast<size_t>(dim);
  const int64_t begin = range.begin / shard.units * shard.indices;
  const int64_t end = range.end == axis_size ? stored[d] : range.end / shard.units * shard.indices;
  const int block = d + 1 == stored.size() ? tensor::info(dtype).block_elements : 1;
  for (int64_t cut : {begin, end}) {
    if (cut != stored[d] && cut % block != 0) return inside_unit(spec, axis, cut, block);
  }
  out.begin[d] = begin;
  out.shape[d] = end - begin;
  return out;
}

tensor::TensorView in_declared_shape(const WeightSpec& spec, tensor::TensorView stored) {
  if (spec.flattened) stored.shape = spec.shape;
  return stored;
}

uint64_t slice_bytes(tensor::DType dtype, const StoredSlice& slice) {
  return tensor::byte_count(dtype, slice.shape).value_or(0);
}

void copy_slice(const tensor::TensorView& stored, const StoredSlice& slice, std::byte* out) {
  const tensor::DTypeInfo& type = tensor::info(stored.dtype);
  // Runs of the last dimension are contiguous; the other dimensions are counted like an odometer.
  const size_t rank = stored.shape.size();
  const auto row_bytes = [&type](int64_t elements) {
    return elements / type.block_elements * type.block_bytes;
  };
  if (rank == 0) {
    std::memcpy(out, stored.data, stored.bytes);
    return;
  }
  const int64_t run = row_bytes(slice.shape[rank - 1]);
  const int64_t skip = row_bytes(slice.begin[rank - 1]), pitch = row_bytes(stored.shape[rank - 1]);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < rank; ++d) rows *= slice.shape[d];
  tensor::Shape at(slice.begin.begin(), slice.begin.end() - 1);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t from = 0;
    for (size_t d = 0; d + 1 < rank; ++d) from = from * stored.shape[d] + at[d];
    std::memcpy(out + row * run, stored.data + from * pitch + skip, static_cast<size_t>(run));
    for (size_t d = rank - 1; d-- > 0;) {
      if (++at[d] < slice.begin[d] + slice.shape[d]) break;
      at[d] = slice.begin[d];
    }
  }
}

}  // namespace nibble::quant
