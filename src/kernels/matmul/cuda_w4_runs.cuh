// How the tiles of a product of 17 tokens and more are dealt to its blocks: the host cuts, and each
// block finds its part. Shared tiles x steps are one line, cut into equal runs ("stream-K"): as
// many as blocks find room, or `split` for each tile, which end with it where its steps can be
// divided so. What is more than two tiles a block is left whole.
//
//   |---- tile 0 ----|---- tile 1 ----|---- tile 2 ----|   whole: | tile 3 | tile 4 | tile 5 | ...
//   |- block 0 -|- block 1 -|- block 2 -|--- block 3 --|          block 0, block 1, ...
//
// Blocks whose runs meet in a tile share it. Those for which it is their run's end finish it, each
// some of its warps' sums (here block 0 tile 0, block 1 tile 1, blocks 2 and 3 tile 2); the others
// leave these for it, in slots of the workspace.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace nibble::kernels::cuda::w4 {

// n / what it was made for, where n x divisor is less than 2^40 and n than 2^23.
struct Divisor {
  uint64_t magic;
  __host__ __device__ int divide(int n) const {
    return static_cast<int>((static_cast<uint32_t>(n) * magic) >> 40);
  }
};
inline Divisor divisor(int by) { return {(uint64_t{1} << 40) / static_cast<uint64_t>(by) + 1}; }

struct Runs {
  int steps;        // of a tile
  int token_tiles;  // neighbours on the line
  int tiles;
  int shared_tiles;  // the first so many
  int run;           // steps of a block's run; the first `longer` blocks have one more
  int longer;
  Divisor by_steps, by_token_tiles;

  // Where a block's run begins.
  __host__ __device__ int begin_of(int block) const {
    return block * run + (block < longer ? block : longer);
  }
};

// For that many blocks: `places` or fewer. split 0: equal runs of all that is shared.
struct Deal {
  Runs runs;
  int blocks;
};
inline Deal deal(int row_tiles, int token_tiles, int steps, int split, int places) {
  Deal out{};
  Runs& r = out.runs;
  r.steps = steps;
  r.token_tiles = token_tiles;
  r.tiles = row_tiles * token_tiles;
  r.by_steps = divisor(steps);
  r.by_token_tiles = divisor(token_tiles);
  const int64_t most = int64_t{r.tiles} * (split == 0 ? steps : split);
  out.blocks = static_cast<int>(std::min(most, int64_t{places}));
  if (split == 1 || r.tiles % out.blocks == 0) return out;
  const int waves = r.tiles / out.blocks;
  r.shared_tiles = waves > 1 ? r.tiles - (waves - 1) * out.blocks : r.tiles;
  r.run = r.shared_tiles * steps / out.blocks;
  r.longer = r.shared_tiles * steps % out.blocks;
  return out;
}

// Steps [begin, end) of a tile, and where it lies.
struct Segment {
  int tile, begin, end;
  int row_tile, token_tile;
};

// Blocks [first, last] share a tile; the first `finishers` of them finish it.
struct Sharers {
  int first, last, finishers;

  // Who finishes one of `units` pieces of the tile, counted from `first`.
  __host__ __device__ int owner(int unit, int units) const { return unit * finishers / units; }
};

// A block's segments, in order. Every role of a block counts them for itself, before its first copy
// or product: so there is no division.
class Segments {
 public:
  __host__ __device__ Segments(const Runs& runs, int block, int blocks)
      : runs_(runs), count_(blocks), me_(blocks - 1 - block), at_(runs.begin_of(me_)) {}

  __host__ __device__ bool next(Segment& s) {
    if (!find(s)) return false;
    s.row_tile = runs_.token_tiles == 1 ? s.tile : runs_.by_token_tiles.divide(s.tile);
    s.token_tile = s.tile - s.row_tile * runs_.token_tiles;
    return true;
  }

  // The block's place on the line.
  __host__ __device__ int me() const { return me_; }
  // Of the memory for parts of the tile that a block's run ends in if that has its first step, else
  // of the one that it begins in: a run has one of each at most.
  static __host__ __device__ int slot(int block, bool has_first) {
    return 2 * block + (has_first ? 0 : 1);
  }
  // Those who finish a tile wait for each other: a grid has no more blocks than find room at once,
  // and where other streams have such grids it is launched as a cooperative one.
  __host__ __device__ Sharers sharers(int tile) const {
    const int begin = tile * runs_.steps;
    const int end = begin + runs_.steps;
    Sharers out = {me_, me_, 0};
    while (runs_.begin_of(out.first) > begin) --out.first;
    while (runs_.begin_of(out.last + 1) < end) ++out.last;
    out.finishers = out.last - out.first + (runs_.begin_of(out.last + 1) == end ? 1 : 0);
    return out;
  }

 private:
  __host__ __device__ bool find(Segment& s) {
    const int end = runs_.begin_of(me_ + 1);
    if (at_ < end) {
      s.tile = runs_.by_steps.divide(at_);
      s.begin = at_ - s.tile * runs_.steps;
      const int last = s.begin + end - at_;
      s.end = runs_.steps < last ? runs_.steps : last;
      at_ += s.end - s.begin;
      return true;
    }
    s.tile = runs_.shared_tiles + me_ + whole_ * count_;
    s.begin = 0;
    s.end = runs_.steps;
    ++whole_;
    return s.tile < runs_.tiles;
  }

  const Runs& runs_;
  int count_;
  int me_;
  int at_;
  int whole_ = 0;
};

}  // namespace nibble::kernels::cuda::w4
