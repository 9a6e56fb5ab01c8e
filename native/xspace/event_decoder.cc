#include "xspace/event_decoder.h"

namespace moeprof::xspace {
namespace {

constexpr int64_t kPicoseconds = 1000;

int64_t FloorToNs(int64_t time_ps) {
  const int64_t quotient = time_ps / kPicoseconds;
  return time_ps % kPicoseconds < 0 ? quotient - 1 : quotient;
}

// floor((1000 timestamp_ns + a_ps + b_ps) / 1000), the nearest int64 where it is none.
int64_t StampNs(int64_t timestamp_ns, int64_t a_ps, int64_t b_ps) {
  int64_t time_ps, stamp_ns;
  if (__builtin_expect(!__builtin_add_overflow(a_ps, b_ps, &time_ps), 1) &&
      __builtin_expect(!__builtin_add_overflow(timestamp_ns, FloorToNs(time_ps), &stamp_ns), 1)) {
    return stamp_ns;
  }
  const __int128 sum_ps =
      static_cast<__int128>(timestamp_ns) * kPicoseconds + static_cast<__int128>(a_ps) + b_ps;
  __int128 floor_ns = sum_ps / kPicoseconds;
  if (sum_ps % kPicoseconds < 0) --floor_ns;
  if (floor_ns < INT64_MIN) return INT64_MIN;
  return floor_ns > INT64_MAX ? INT64_MAX : static_cast<int64_t>(floor_ns);
}

}  // namespace

void EventDecoder::Decode(Chunk* chunk) {
  references_.Reset();
  const int64_t timestamp_ns = plane_.lines[static_cast<size_t>(chunk->line)].timestamp_ns;
  Fields fields(data_, chunk->span);
  Field field;
  while (fields.Next(&field)) {
    if (field.Is(4, kBytes)) DecodeEvent(field.content, timestamp_ns, chunk);
  }
}

void EventDecoder::DecodeEvent(Span span, int64_t timestamp_ns, Chunk* chunk) {
  int64_t id = 0, offset_ps = 0, duration_ps = 0;
  stats_.clear();
  Fields fields(data_, span);
  Field field;
  while (fields.Next(&field)) {
    if (field.Is(4, kBytes)) {
      stats_.push_back(field.content);
    } else if (field.Is(1, kVarint)) {
      id = field.Signed();
    } else if (field.Is(2, kVarint)) {
      offset_ps = field.Signed();
    } else if (field.Is(3, kVarint)) {
      duration_ps = field.Signed();
    }
  }
  if (fields.damaged()) {
    ++chunk->damaged;
    chunk->damage.Add(fields.damage());
    return;
  }
  const int32_t name = plane_.event_names.places.Find(id);
  if (name >= 0 && request_.skip_names != nullptr && request_.skip_names[name]) {
    ++skipped_[static_cast<size_t>(name)];
    return;
  }
  const int64_t row = chunk->row + chunk->kept++;
  request_.line[row] = chunk->line;
  request_.name[row] = name;
  request_.start_ns[row] = StampNs(timestamp_ns, offset_ps, 0);
  request_.end_ns[row] = StampNs(timestamp_ns, offset_ps, duration_ps);
  for (int64_t at = 0; at < request_.numbers_count; ++at) request_.numbers[at][row] = kAbsent;
  for (int64_t at = 0; at < request_.texts_count; ++at) request_.texts[at][row] = -1;
  for (const Span& stat : stats_) DecodeStat(stat, row, chunk);
}

void EventDecoder::DecodeStat(Span span, int64_t row, Chunk* chunk) {
  int64_t id = 0;
  Field field, value;
  Fields fields(data_, span);
  while (fields.Next(&field)) {
    switch (field.number) {
      case 1:
        if (field.kind == kVarint) id = field.Signed();
        break;
      case 2:
        if (field.kind == kFixed64) value = field;
        break;
      case 3:
      case 4:
      case 7:
        if (field.kind == kVarint) value = field;
        break;
      case 5:
      case 6:
        if (field.kind == kBytes) value = field;
        break;
    }
  }
  if (fields.damaged()) {
    chunk->damage.Add(fields.damage());
    return;
  }
  const int32_t stat = plane_.stat_names.places.Find(id);
  if (stat < 0) return;
  if (value.number == 3 || value.number == 4) {
    const int32_t column = request_.number_of_stat[stat];
    if (column >= 0) request_.numbers[column][row] = value.Signed();
    return;
  }
  const int32_t column = request_.text_of_stat[stat];
  if (column < 0) return;
  if (value.number == 5 || value.number == 6) {
    request_.texts[column][row] = chunk->strings.Code(value.content);
  } else if (value.number == 7) {
    const int32_t code = references_.Code(value.Signed(), &chunk->strings);
    if (code >= 0) request_.texts[column][row] = code;
  }
}

}  // namespace moeprof::xspace
