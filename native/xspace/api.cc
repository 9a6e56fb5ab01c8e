// Question: what can other languages call? Plain C: no exception leaves, null means no memory.
//
// Names, argument types and tables are those in moeprof/ingest/xspace/native_library.py. A space
// keeps pointing at the caller's bytes, which must outlive it.
#include <cstdint>
#include <exception>

#include "xspace/events.h"
#include "xspace/heads.h"
#include "xspace/tables.h"

#define MOEPROF_EXPORT extern "C" __attribute__((visibility("default")))

using moeprof::xspace::Heads;
using moeprof::xspace::Request;
using moeprof::xspace::Tables;

// An open file, its bytes the caller's.
struct MoeprofXspace {
  const uint8_t* data;
  Heads heads;
};

MOEPROF_EXPORT MoeprofXspace* MoeprofXspaceOpen(const uint8_t* data, int64_t size,
                                                int32_t threads) try {
  return new MoeprofXspace{data, moeprof::xspace::ReadHeads(data, size, threads)};
} catch (const std::exception&) {
  return nullptr;
}

MOEPROF_EXPORT void MoeprofXspaceClose(MoeprofXspace* space) { delete space; }

MOEPROF_EXPORT Tables* MoeprofXspaceHeads(const MoeprofXspace* space) try {
  return new Tables(moeprof::xspace::HeadTables(space->heads));
} catch (const std::exception&) {
  return nullptr;
}

// Fills the columns of the request.
MOEPROF_EXPORT Tables* MoeprofXspaceEvents(const MoeprofXspace* space, const Request* request,
                                           int32_t threads) try {
  const auto& plane = space->heads.planes.at(static_cast<size_t>(request->plane));
  const auto result = moeprof::xspace::ReadEvents(space->data, plane, *request, threads);
  return new Tables(moeprof::xspace::EventTables(result));
} catch (const std::exception&) {
  return nullptr;
}

// One table, row by row; `*length` gets the number of its values. Valid until the tables are freed.
MOEPROF_EXPORT const int64_t* MoeprofXspaceTable(const Tables* tables, int32_t number,
                                                 int64_t* length) {
  const auto& table = (*tables)[static_cast<size_t>(number)];
  *length = static_cast<int64_t>(table.size());
  return table.data();
}

MOEPROF_EXPORT void MoeprofXspaceFree(Tables* tables) { delete tables; }
