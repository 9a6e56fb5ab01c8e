// Question: which bytes do the slices of one part of a Perfetto trace become?
//
// The wire format of `TracePacket` and `TrackEvent` (protos/perfetto/trace in google/perfetto).
// moeprof/reports/perfetto/file.py makes the same bytes through the package perfetto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeprof::perfetto {

// Slices column by column, and what many of them have in common; a structure of the same name and
// order of fields is in moeprof/reports/perfetto/file.py. `none` stands for a value that is absent.
struct Part {
  int64_t count;
  int64_t none;
  int64_t moved_ns;      // added to each stamp
  const int64_t* order;  // the slices by track, then by start, the longest first
  const int64_t* track;
  const int64_t* start_ns;
  const int64_t* end_ns;
  const int64_t* look;
  const int64_t* flow;  // null where no slice has any
  int64_t numbers_count;
  const int64_t* const* numbers;
  const int64_t* number_names;  // what each of `numbers` is called: a number of a text
  // Of each look three stretches of `content`, as their begins and the end of the last: fields of
  // its event up to the notes of numbers; those from there to the track; texts that its first slice
  // makes known, as a field of the packet.
  const int64_t* looks;
  int64_t looks_count;
  const uint8_t* content;
};

// Bytes whose memory is written over again and again.
class Bytes {
 public:
  // Room for `more` bytes behind those written; `Used` says how far they were.
  uint8_t* Room(size_t more);
  void Used(const uint8_t* end) { size_ = static_cast<size_t>(end - data_.data()); }
  void Clear() { size_ = 0; }
  const uint8_t* data() const { return data_.data(); }
  size_t size() const { return size_; }

 private:
  std::vector<uint8_t> data_;
  size_t size_ = 0;
};

// Writes a part some slices at a time: the begin of each, and the end of each as soon as the next
// one begins behind it. What the part points at must outlive it.
class SliceWriter {
 public:
  explicit SliceWriter(const Part& part);

  // Writes `slices` more, or those that are left, in the place of what was written before; behind
  // the last one all ends.
  void Write(int64_t slices);

  const Bytes& bytes() const { return bytes_; }
  // Where each packet ends in `bytes`.
  const std::vector<int64_t>& packet_ends() const { return packet_ends_; }

 private:
  struct Open {
    int64_t track;
    int64_t end_ns;
  };

  void Begin(int64_t slice);
  void End(const Open& open);
  uint8_t* Notes(uint8_t* out, int64_t slice) const;

  const Part part_;
  int64_t next_ = 0;
  std::vector<Open> open_;      // what has begun, innermost last
  std::vector<bool> is_known_;  // of each look, whether its texts were sent
  std::vector<uint8_t> notes_;
  Bytes bytes_;
  std::vector<int64_t> packet_ends_;
};

}  // namespace moeprof::perfetto
