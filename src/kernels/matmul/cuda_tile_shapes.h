// Products that between them are cut into every tile that cuda_w4_wgmma.cu has, on a card of 132
// multiprocessors: cuda_plans_test.cc sees to that on any machine, cuda_tiles_test.cc runs them.
#pragma once

namespace nibble::kernels {

struct ProductShape {
  int n, k, m;
};

// Of weights in groups of 128: without zeros and with, 4 and 8 bits.
inline constexpr ProductShape kEveryTile[] = {
    {64, 384, 17},     {64, 384, 65},     {64, 384, 97},    {64, 384, 129},    {8704, 384, 17},
    {8704, 384, 33},   {8704, 256, 49},   {8704, 384, 49},  {8704, 384, 81},   {8704, 384, 97},
    {8704, 384, 113},  {8704, 384, 125},  {8704, 384, 129}, {8704, 384, 145},  {8704, 384, 161},
    {11776, 384, 161}, {11776, 384, 225}, {17408, 384, 17}, {17408, 384, 33},  {17408, 384, 49},
    {17408, 384, 65},  {17408, 384, 81},  {17408, 384, 97}, {17408, 384, 113}, {17408, 384, 125},
};

}  // namespace nibble::kernels
