// Question: where do a rank's results differ from what they should be?
#pragma once

#include <string>

#include "stress/gpu_exchange_case.h"

namespace moeprof::stress {

// Empty where all bits agree. Otherwise, per array: how many values differ, the first of them with
// its row and column, found and expected, and which rows are concerned.
std::string Differences(const Case& round, const Results& found, const Results& expected);
std::string Differences(const Case& round, const Plan& found, const Plan& expected);

// The same for a round whose routing was unsound: every row is NaN, every number -1.
std::string NotUseless(const Case& round, const Results& found);

}  // namespace moeprof::stress
