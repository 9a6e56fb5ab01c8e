#include "perfetto/slices.h"

#include <algorithm>
#include <cstring>

namespace moeprof::perfetto {
namespace {

constexpr size_t kLongest = 10;  // bytes of a varint
constexpr size_t kNote = 2 + 2 * (1 + kLongest);

// Tags: field number << 3 | wire type.
constexpr uint8_t kPacketOfTrace = 1 << 3 | 2;
constexpr uint8_t kTimestamp = 8 << 3 | 0;
constexpr uint8_t kTrackEvent = 11 << 3 | 2;
constexpr uint8_t kNoteOfEvent = 4 << 3 | 2;
constexpr uint8_t kNameOfNote = 1 << 3 | 0;
constexpr uint8_t kWholeNumber = 4 << 3 | 0;
constexpr uint8_t kTrack = 11 << 3 | 0;
constexpr uint8_t kFlow[] = {0x80 | ((47 << 3 | 1) & 0x7F), (47 << 3 | 1) >> 7};
// Fields whole: trusted_packet_sequence_id = 1, SEQ_NEEDS_INCREMENTAL_STATE, TYPE_SLICE_END.
constexpr uint8_t kSequence[] = {10 << 3 | 0, 1};
constexpr uint8_t kNeedsState[] = {13 << 3 | 0, 2};
constexpr uint8_t kSliceEnd[] = {9 << 3 | 0, 2};

size_t VarintSize(uint64_t value) {
  return static_cast<size_t>(63 - __builtin_clzll(value | 1)) / 7 + 1;
}

uint8_t* Varint(uint8_t* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
  *out++ = static_cast<uint8_t>(value);
  return out;
}

uint8_t* Copied(uint8_t* out, const uint8_t* from, size_t size) {
  std::memcpy(out, from, size);
  return out + size;
}

template <size_t size>
uint8_t* Copied(uint8_t* out, const uint8_t (&from)[size]) {
  return Copied(out, from, size);
}

// A packet from its head to the event's content, which is `event` bytes and is followed by `texts`.
uint8_t* Head(uint8_t* out, uint64_t stamp, size_t event, size_t texts) {
  const size_t before = 1 + VarintSize(stamp) + sizeof(kSequence) + 1 + VarintSize(event);
  *out++ = kPacketOfTrace;
  out = Varint(out, before + event + texts + sizeof(kNeedsState));
  *out++ = kTimestamp;
  out = Varint(out, stamp);
  out = Copied(out, kSequence);
  *out++ = kTrackEvent;
  return Varint(out, event);
}

// The most bytes of a packet without its look.
constexpr size_t kMostAround = 3 + 3 * kLongest + sizeof(kSequence) + sizeof(kNeedsState) + 1 +
                               kLongest + sizeof(kFlow) + sizeof(uint64_t) + sizeof(kSliceEnd);

}  // namespace

uint8_t* Bytes::Room(size_t more) {
  if (data_.size() < size_ + more) data_.resize(std::max(size_ + more, 2 * data_.size()));
  return data_.data() + size_;
}

SliceWriter::SliceWriter(const Part& part)
    : part_(part),
      is_known_(static_cast<size_t>(part.looks_count)),
      notes_(kNote * static_cast<size_t>(part.numbers_count)) {}

void SliceWriter::Write(int64_t slices) {
  bytes_.Clear();
  packet_ends_.clear();
  const int64_t stop = std::min(part_.count, next_ + slices);
  for (; next_ < stop; ++next_) {
    const int64_t slice = part_.order[next_];
    const int64_t track = part_.track[slice], start = part_.start_ns[slice];
    while (!open_.empty() && (open_.back().track != track || open_.back().end_ns <= start)) {
      End(open_.back());
      open_.pop_back();
    }
    Begin(slice);
    open_.push_back({track, part_.end_ns[slice]});
  }
  if (next_ < part_.count) return;
  for (; !open_.empty(); open_.pop_back()) End(open_.back());
}

void SliceWriter::Begin(int64_t slice) {
  const auto look = static_cast<size_t>(part_.look[slice]);
  const int64_t* const bounds = part_.looks + 4 * look;
  const uint8_t* const content = part_.content;
  const auto head = static_cast<size_t>(bounds[1] - bounds[0]);
  const auto tail = static_cast<size_t>(bounds[2] - bounds[1]);
  const size_t texts = is_known_[look] ? 0 : static_cast<size_t>(bounds[3] - bounds[2]);
  is_known_[look] = true;
  const auto notes = static_cast<size_t>(Notes(notes_.data(), slice) - notes_.data());
  const auto track = static_cast<uint64_t>(part_.track[slice]);
  const bool has_flow = part_.flow != nullptr && part_.flow[slice] != part_.none;
  const size_t flow = has_flow ? sizeof(kFlow) + sizeof(uint64_t) : 0;
  const size_t event = head + notes + tail + 1 + VarintSize(track) + flow;

  uint8_t* out = bytes_.Room(kMostAround + head + notes + tail + texts);
  out = Head(out, static_cast<uint64_t>(part_.start_ns[slice] + part_.moved_ns), event, texts);
  out = Copied(out, content + bounds[0], head);
  out = Copied(out, notes_.data(), notes);
  out = Copied(out, content + bounds[1], tail);
  *out++ = kTrack;
  out = Varint(out, track);
  if (has_flow) {
    out = Copied(out, kFlow);
    out = Copied(out, reinterpret_cast<const uint8_t*>(part_.flow + slice), sizeof(uint64_t));
  }
  out = Copied(out, content + bounds[2], texts);
  out = Copied(out, kNeedsState);
  bytes_.Used(out);
  packet_ends_.push_back(static_cast<int64_t>(bytes_.size()));
}

void SliceWriter::End(const Open& open) {
  const auto track = static_cast<uint64_t>(open.track);
  const size_t event = sizeof(kSliceEnd) + 1 + VarintSize(track);
  uint8_t* out = bytes_.Room(kMostAround);
  out = Head(out, static_cast<uint64_t>(open.end_ns + part_.moved_ns), event, 0);
  out = Copied(out, kSliceEnd);
  *out++ = kTrack;
  out = Varint(out, track);
  out = Copied(out, kNeedsState);
  bytes_.Used(out);
  packet_ends_.push_back(static_cast<int64_t>(bytes_.size()));
}

// The notes of numbers, each a field of the event.
uint8_t* SliceWriter::Notes(uint8_t* out, int64_t slice) const {
  for (int64_t number = 0; number < part_.numbers_count; ++number) {
    const int64_t value = part_.numbers[number][slice];
    if (value == part_.none) continue;
    const auto name = static_cast<uint64_t>(part_.number_names[number]);
    *out++ = kNoteOfEvent;
    out = Varint(out, 2 + VarintSize(name) + VarintSize(static_cast<uint64_t>(value)));
    *out++ = kNameOfNote;
    out = Varint(out, name);
    *out++ = kWholeNumber;
    out = Varint(out, static_cast<uint64_t>(value));
  }
  return out;
}

}  // namespace moeprof::perfetto
