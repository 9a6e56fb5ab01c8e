// Question: what can other languages call? Plain C: no exception leaves, null or 0 means no
// memory.
//
// Names and argument types are those in moeprof/ingest/xspace/native_library.py. What a reader's
// room points at must outlive it.
#include <cstdint>
#include <exception>

#include "chrome_json/reader.h"

#define MOEPROF_EXPORT extern "C" __attribute__((visibility("default")))

using moeprof::chrome::Reader;
using moeprof::chrome::Report;
using moeprof::chrome::Role;
using moeprof::chrome::Room;

MOEPROF_EXPORT Reader* MoeprofChromeOpen(const Room* room) try {
  return new Reader(*room);
} catch (const std::exception&) {
  return nullptr;
}

MOEPROF_EXPORT void MoeprofChromeClose(Reader* reader) { delete reader; }

MOEPROF_EXPORT int32_t MoeprofChromeDescribe(Reader* reader, int32_t role, int64_t place,
                                             const char* text) try {
  return reader->Describe(static_cast<Role>(role), place, text) ? 1 : 0;
} catch (const std::exception&) {
  return 0;
}

// Why it stopped.
MOEPROF_EXPORT int32_t MoeprofChromeRead(Reader* reader, const uint8_t* data, int64_t begin,
                                         int64_t size, Report* report) try {
  return static_cast<int32_t>(reader->Read(data, begin, size, report));
} catch (const std::exception&) {
  return 0;
}

// The texts by code - 1: how, begin and end, row by row, and their bytes. Valid until it reads on.
MOEPROF_EXPORT void MoeprofChromeTexts(const Reader* reader, const int64_t** table,
                                       const char** content) {
  *table = reader->texts().table().data();
  *content = reader->texts().content().data();
}
