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

EventDecoder::EventDecoder(const uint8_t* data, const Plane& plane, const Request& request)
    : data_(data),
      plane_(plane),
      request_(request),
      references_(plane.stat_names),
      skipped_(plane.event_names.list.size()) {
  for (int64_t at = 0; at < request.numbers_count; ++at) {
    numbers_.emplace_back(request.numbers[at], kAbsent);
  }
  for (int64_t at = 0; at < request.texts_count; ++at) texts_.emplace_back(request.texts[at], -1);
}

void EventDecoder::Decode(Chunk* chunk) {
  references_.Reset();
  timestamp_ns_ = plane_.lines[static_cast<size_t>(chunk->line)].timestamp_ns;
  readable_ = data_ + chunk->span.end;
  for (auto& column : numbers_) column.Begin(chunk->row);
  for (auto& column : texts_) column.Begin(chunk->row);
  Fields fields(data_, chunk->span);
  Field field;
  while (fields.Next(&field)) {
    if (!field.Is(4, kBytes)) continue;
    if (!DecodeUsual(field.content, chunk)) DecodeAny(field.content, chunk);
  }
  const int64_t end = chunk->row + chunk->kept;
  for (auto& column : numbers_) chunk->has_number.push_back(column.End(end));
  for (auto& column : texts_) chunk->has_text.push_back(column.End(end));
}

bool EventDecoder::DecodeUsual(Span span, Chunk* chunk) {
  const uint8_t* here = data_ + span.begin;
  const uint8_t* const end = data_ + span.end;
  const auto number = [&here, end, this](uint8_t tag, uint64_t* value) {
    if (here == end || *here != tag) return true;  // absent
    here = ShortVarint(here + 1, readable_, value);
    return here != nullptr && here <= end;
  };
  Event event;
  if (!number(0x08, &event.id) || !number(0x10, &event.offset_ps) ||
      !number(0x18, &event.duration_ps)) {
    return false;
  }
  const uint8_t* const stats = here;
  for (; here != end; here += 2 + here[1]) {
    if (end - here < 2 || here[0] != 0x22 || here[1] >= 0x80 || end - here - 2 < here[1]) {
      return false;
    }
  }
  const int64_t row = AddRow(event, chunk);
  if (row < 0) return true;
  for (here = stats; here != end; here += 2 + here[1]) {
    const int64_t begin = here + 2 - data_;
    DecodeStat({begin, begin + here[1]}, row, chunk);
  }
  return true;
}

void EventDecoder::DecodeAny(Span span, Chunk* chunk) {
  Event event;
  stats_.clear();
  Fields fields(data_, span);
  Field field;
  while (fields.Next(&field)) {
    if (field.Is(4, kBytes)) {
      stats_.push_back(field.content);
    } else if (field.Is(1, kVarint)) {
      event.id = field.value;
    } else if (field.Is(2, kVarint)) {
      event.offset_ps = field.value;
    } else if (field.Is(3, kVarint)) {
      event.duration_ps = field.value;
    }
  }
  chunk->damage.AddEnd(fields);
  if (fields.damaged()) {
    ++chunk->damaged;
    return;
  }
  const int64_t row = AddRow(event, chunk);
  if (row < 0) return;
  for (const Span& stat : stats_) DecodeStat(stat, row, chunk);
}

int64_t EventDecoder::AddRow(const Event& event, Chunk* chunk) {
  const int32_t name = plane_.event_names.places.Find(static_cast<int64_t>(event.id));
  if (name >= 0 && request_.skip_names != nullptr && request_.skip_names[name]) {
    ++skipped_[static_cast<size_t>(name)];
    return -1;
  }
  const int64_t row = chunk->row + chunk->kept++;
  const int64_t offset_ps = static_cast<int64_t>(event.offset_ps);
  request_.line[row] = chunk->line;
  request_.name[row] = name;
  request_.start_ns[row] = StampNs(timestamp_ns_, offset_ps, 0);
  request_.end_ns[row] = StampNs(timestamp_ns_, offset_ps, static_cast<int64_t>(event.duration_ps));
  return row;
}

bool EventDecoder::ReadUsualStat(Span span, Stat* stat) const {
  const uint8_t* here = data_ + span.begin;
  const uint8_t* const end = data_ + span.end;
  if (end - here < 4 || *here != 0x08) return false;
  here = ShortVarint(here + 1, readable_, &stat->id);
  if (here == nullptr || here >= end) return false;
  const uint8_t tag = *here++;
  stat->number = tag >> 3;
  if (tag == 0x18 || tag == 0x20 || tag == 0x38) {
    return ShortVarint(here, readable_, &stat->value) == end;
  }
  if (tag == 0x11) return end - here == 8;  // a double: of no column
  if (tag == 0x2A || tag == 0x32) {
    uint64_t length;
    here = ShortVarint(here, readable_, &length);
    if (here == nullptr || here > end || length != static_cast<uint64_t>(end - here)) return false;
    stat->content = {here - data_, span.end};
    return true;
  }
  return false;
}

bool EventDecoder::ReadAnyStat(Span span, Stat* stat, Chunk* chunk) const {
  Field field;
  Fields fields(data_, span);
  while (fields.Next(&field)) {
    const bool is_value = field.Is(2, kFixed64) || field.Is(3, kVarint) || field.Is(4, kVarint) ||
                          field.Is(5, kBytes) || field.Is(6, kBytes) || field.Is(7, kVarint);
    if (is_value) {
      stat->number = field.number;
      stat->value = field.value;
      stat->content = field.content;
    } else if (field.Is(1, kVarint)) {
      stat->id = field.value;
    }
  }
  chunk->damage.AddEnd(fields);
  return !fields.damaged();
}

void EventDecoder::DecodeStat(Span span, int64_t row, Chunk* chunk) {
  Stat stat;
  if (!ReadUsualStat(span, &stat)) {
    stat = Stat();
    if (!ReadAnyStat(span, &stat, chunk)) return;
  }
  const int32_t place = plane_.stat_names.places.Find(static_cast<int64_t>(stat.id));
  if (place < 0) return;
  if (stat.number == 3 || stat.number == 4) {
    const int32_t column = request_.number_of_stat[place];
    if (column >= 0) {
      numbers_[static_cast<size_t>(column)].Set(row, static_cast<int64_t>(stat.value));
    }
    return;
  }
  const int32_t column = request_.text_of_stat[place];
  if (column < 0) return;
  if (stat.number == 5 || stat.number == 6) {
    texts_[static_cast<size_t>(column)].Set(row, chunk->strings.Code(stat.content));
  } else if (stat.number == 7) {
    const int32_t code = references_.Code(static_cast<int64_t>(stat.value), &chunk->strings);
    if (code >= 0) texts_[static_cast<size_t>(column)].Set(row, code);
  }
}

}  // namespace moeprof::xspace
