// Question: which fields does a stretch of protobuf bytes hold?
//
// The wire format alone (protobuf.dev, "Encoding"). Every read is checked against the end of the
// stretch and each step consumes at least one byte, so hostile bytes cost at most their length.
// moeprof/ingest/xspace/wire.py is the twin: same faults, same positions.
#pragma once

#include <cstdint>
#include <cstring>

namespace moeprof::xspace {

enum WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Numbered as `Fault` in wire.py, which has the words.
enum class Fault : uint8_t {
  kNone = 0,
  kLongNumber = 1,
  kCutNumber = 2,
  kFieldZero = 3,
  kCutFixed = 4,
  kWireType = 5,
  kCutBytes = 6,
};

// A stretch of the file, as offsets from its start.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Damage {
  int64_t position = 0;
  Fault fault = Fault::kNone;
  uint8_t kind = 0;
  uint64_t number = 0;
};

// `value` is the number of a varint or fixed field; `content` the stretch of a bytes field.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;
  Span content;
  uint8_t kind = 0;

  bool Is(uint64_t wanted_number, WireType wanted_kind) const {
    return number == wanted_number && kind == wanted_kind;
  }
  int64_t Signed() const { return static_cast<int64_t>(value); }
};

// Reads a varint of at most 8 bytes, the usual ones, without a branch per byte; null where there is
// none of that length. Bytes up to `end` may be looked at: where the varint belongs to a shorter
// message, the caller compares what it consumed. Little-endian machines alone have a wheel.
inline const uint8_t* ShortVarint(const uint8_t* here, const uint8_t* end, uint64_t* value) {
  if (here < end && *here < 0x80) {
    *value = *here;
    return here + 1;
  }
  if (end - here < 8) return nullptr;
  uint64_t word;
  std::memcpy(&word, here, sizeof(word));
  const uint64_t last_bytes = ~word & 0x8080808080808080;
  if (last_bytes == 0) return nullptr;
  const int bits = __builtin_ctzll(last_bytes);  // of the first byte without a successor: its top
  word &= ~uint64_t{0} >> (63 - bits);
  // Close the gaps between groups of 7, then 14, then 28 bits.
  word = ((word & 0x7F007F007F007F00) >> 1) | (word & 0x007F007F007F007F);
  word = ((word & 0x3FFF00003FFF0000) >> 2) | (word & 0x00003FFF00003FFF);
  *value = ((word & 0x0FFFFFFF00000000) >> 4) | (word & 0x000000000FFFFFFF);
  return here + bits / 8 + 1;
}

// The fields of the message in a stretch, in order.
class Fields {
 public:
  Fields(const uint8_t* data, Span span)
      : data_(data), here_(data + span.begin), end_(data + span.end) {}

  // Reads the next field. False at the end and at damage; a bytes field that overruns the stretch
  // (kCutBytes) still leaves its number and what is there of its content in `field`.
  inline bool Next(Field* field) {
    if (here_ == end_) return false;
    const uint8_t* const at = here_;
    uint64_t tag;
    if (!Varint(&tag)) return false;
    field->number = tag >> 3;
    field->kind = tag & 7;
    if (field->number == 0) return Fail(at, Fault::kFieldZero, *field);
    switch (field->kind) {
      case kVarint:
        return Varint(&field->value);
      case kBytes:
        return Content(at, field);
      case kFixed64:
        return Fixed<uint64_t>(at, field);
      case kFixed32:
        return Fixed<uint32_t>(at, field);
      default:
        return Fail(at, Fault::kWireType, *field);
    }
  }

  // Where the next field starts.
  int64_t position() const { return here_ - data_; }
  bool damaged() const { return damage_.fault != Fault::kNone; }
  bool cut() const { return damage_.fault == Fault::kCutBytes; }
  const Damage& damage() const { return damage_; }

 private:
  bool Fail(const uint8_t* at, Fault fault, const Field& field) {
    damage_ = {at - data_, fault, field.kind, field.number};
    here_ = at;
    return false;
  }

  // At most 10 bytes, of which 64 bits count.
  inline bool Varint(uint64_t* value) {
    if (__builtin_expect(here_ < end_ && *here_ < 0x80, 1)) {
      *value = *here_++;
      return true;
    }
    if (const uint8_t* const after = ShortVarint(here_, end_, value)) {
      here_ = after;
      return true;
    }
    return LongVarint(value);
  }

  bool LongVarint(uint64_t* value) {
    const bool has_ten = end_ - here_ >= 10;
    const uint8_t* const stop = has_ten ? here_ + 10 : end_;
    uint64_t sum = 0;
    int shift = 0;
    for (const uint8_t* byte = here_; byte != stop; ++byte, shift += 7) {
      sum |= static_cast<uint64_t>(*byte & 0x7F) << shift;
      if (*byte < 0x80) {
        here_ = byte + 1;
        *value = sum;
        return true;
      }
    }
    return Fail(here_, has_ten ? Fault::kLongNumber : Fault::kCutNumber, Field());
  }

  inline bool Content(const uint8_t* at, Field* field) {
    uint64_t length;
    if (!Varint(&length)) return false;
    const int64_t begin = here_ - data_;
    if (length > static_cast<uint64_t>(end_ - here_)) {
      field->content = {begin, end_ - data_};
      return Fail(at, Fault::kCutBytes, *field);
    }
    here_ += length;
    field->content = {begin, here_ - data_};
    return true;
  }

  template <typename Width>
  bool Fixed(const uint8_t* at, Field* field) {
    if (end_ - here_ < static_cast<int64_t>(sizeof(Width))) {
      return Fail(at, Fault::kCutFixed, *field);
    }
    Width value;
    std::memcpy(&value, here_, sizeof(Width));
    here_ += sizeof(Width);
    field->value = value;
    return true;
  }

  const uint8_t* data_;
  const uint8_t* here_;
  const uint8_t* end_;
  Damage damage_;
};

}  // namespace moeprof::xspace
