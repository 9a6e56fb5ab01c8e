// Question: do the units of the longest sides that a grouped product takes stay within int32?
//
// To be built with -fsanitize=signed-integer-overflow and without recovery: an overflow ends it.
// With an argument, the side to try in place of the longest.
#include <cstdio>
#include <cstdlib>

#include "gpu/grouped_gemm/sides.h"
#include "gpu/grouped_gemm/work_units.h"

namespace {

using moeprof::gpu::CheckSides;
using moeprof::gpu::kLongestSide;
using moeprof::gpu::PlaceOf;
using moeprof::gpu::TilePlace;
using moeprof::gpu::Tiling;
using moeprof::gpu::UnitsOf;

bool Inside(const TilePlace& place, int32_t rows) { return place.row >= 0 && place.row < rows; }

// The first, a middle and the last unit of a group that is `rows` long; true where they lie within
// it.
bool EndsLieInside(const Tiling& tiling, int32_t rows) {
  const int32_t units = UnitsOf(tiling, rows);
  for (const int32_t unit : {0, units / 2, units - 1}) {
    if (!Inside(PlaceOf(tiling, rows, unit, 0), rows)) return false;
    if (tiling.pairs) PlaceOf(tiling, rows, unit, 1);  // may lie past the last column
  }
  return true;
}

}  // namespace

int main(int count, char** values) {
  const int64_t side = count > 1 ? std::strtoll(values[1], nullptr, 10) : kLongestSide;
  const auto side32 = static_cast<int32_t>(side);
  if (auto complaint = CheckSides({1, side, 1})) {
    std::puts(complaint->c_str());
    std::fflush(stdout);  // an overflow below would lose it
  }
  for (const bool pairs : {false, true}) {
    for (const int32_t short_side : {8, 256, 264, 512, 776}) {
      // The long side is the rows, then the columns.
      if (!EndsLieInside({128, 256, short_side, pairs}, side32) ||
          !EndsLieInside({128, 256, side32, pairs}, short_side)) {
        std::puts("a unit lies outside its group");
        return 1;
      }
    }
  }
  std::puts("ok");
  return 0;
}
