// Question: how does code that knows no XLA say that it failed?
#pragma once

#include <optional>
#include <string>

namespace moeprof {

enum class Fault { kInvalidArgument, kDeadlineExceeded, kAborted, kResourceExhausted, kInternal };

struct Failure {
  Fault fault;
  std::string text;
};

// Nothing, or why it failed.
using Outcome = std::optional<Failure>;

}  // namespace moeprof
