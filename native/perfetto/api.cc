// Question: what can other languages call? Plain C: no exception leaves, null or 0 means no
// memory.
//
// Names and argument types are those in moeprof/ingest/xspace/native_library.py. What a part points
// at must outlive its writer.
#include <cstdint>
#include <exception>

#include "perfetto/slices.h"

#define MOEPROF_EXPORT extern "C" __attribute__((visibility("default")))

using moeprof::perfetto::Part;
using moeprof::perfetto::SliceWriter;

// Packets one behind the other, valid until the writer goes on; as in file.py.
struct MoeprofPackets {
  const uint8_t* bytes;
  const int64_t* ends;
  int64_t count;
};

MOEPROF_EXPORT SliceWriter* MoeprofSlicesOpen(const Part* part) try {
  return new SliceWriter(*part);
} catch (const std::exception&) {
  return nullptr;
}

MOEPROF_EXPORT void MoeprofSlicesClose(SliceWriter* writer) { delete writer; }

MOEPROF_EXPORT int32_t MoeprofSlicesWrite(SliceWriter* writer, int64_t slices,
                                          MoeprofPackets* packets) try {
  writer->Write(slices);
  const auto& ends = writer->packet_ends();
  *packets = {writer->bytes().data(), ends.data(), static_cast<int64_t>(ends.size())};
  return 1;
} catch (const std::exception&) {
  return 0;
}
