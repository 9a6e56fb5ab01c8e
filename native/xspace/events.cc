#include "xspace/events.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "xspace/event_decoder.h"
#include "xspace/pages.h"
#include "xspace/workers.h"

namespace moeprof::xspace {
namespace {

// The work, in file order: it does not depend on the number of threads, so neither do the columns.
std::vector<Chunk> CutIntoChunks(const uint8_t* data, const Plane& plane, const Request& request) {
  std::vector<Chunk> chunks;
  int64_t row = 0;
  for (size_t at = 0; at < plane.lines.size(); ++at) {
    const Line& line = plane.lines[at];
    if (line.events == 0 || (request.skip_lines != nullptr && request.skip_lines[at])) continue;
    int64_t begin = line.span.begin, left = line.events;
    for (size_t part = 0; part <= line.marks.size(); ++part) {
      const int64_t end = part < line.marks.size() ? line.marks[part] : line.span.end;
      chunks.emplace_back(data);
      Chunk& chunk = chunks.back();
      chunk.line = static_cast<int32_t>(at);
      chunk.span = {begin, end};
      chunk.row = row;
      chunk.room = part < line.marks.size() ? kChunkEvents : left;
      row += chunk.room;
      left -= chunk.room;
      begin = end;
    }
  }
  return chunks;
}

template <typename Value>
void Move(Value* column, int64_t from, int64_t to, int64_t rows) {
  if (from != to) {
    std::memmove(column + to, column + from, static_cast<size_t>(rows) * sizeof(Value));
  }
}

// Says which columns have a value in any chunk.
void NoteColumns(const std::vector<Chunk>& chunks, const Request& request) {
  for (const Chunk& chunk : chunks) {
    for (size_t at = 0; at < chunk.has_number.size(); ++at) {
      request.has_number[at] |= chunk.has_number[at];
    }
    for (size_t at = 0; at < chunk.has_text.size(); ++at) {
      request.has_text[at] |= chunk.has_text[at];
    }
  }
}

// Moves a chunk's rows to where they belong, gives their texts the codes of the whole and sets
// them to absent in columns that other chunks have.
void Settle(const Request& request, const Chunk& chunk, int64_t to, StringCodes* strings) {
  const int64_t from = chunk.row, rows = chunk.kept;
  Move(request.line, from, to, rows);
  Move(request.name, from, to, rows);
  Move(request.start_ns, from, to, rows);
  Move(request.end_ns, from, to, rows);
  for (int64_t at = 0; at < request.numbers_count; ++at) {
    if (chunk.has_number[static_cast<size_t>(at)]) {
      Move(request.numbers[at], from, to, rows);
    } else if (request.has_number[at]) {
      std::fill_n(request.numbers[at] + to, rows, kAbsent);
    }
  }
  std::vector<int32_t> codes;
  codes.reserve(chunk.strings.texts().size());
  for (const Span& text : chunk.strings.texts()) codes.push_back(strings->Code(text));
  for (int64_t at = 0; at < request.texts_count; ++at) {
    int32_t* const column = request.texts[at];
    if (!chunk.has_text[static_cast<size_t>(at)]) {
      if (request.has_text[at]) std::fill_n(column + to, rows, -1);
      continue;
    }
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t code = column[from + row];
      column[to + row] = code < 0 ? code : codes[static_cast<size_t>(code)];
    }
  }
}

void AddDamage(const Chunk& chunk, const Request& request, EventsResult* result) {
  result->damaged += chunk.damaged;
  request.damaged_of_line[chunk.line] += chunk.damage.count;
  for (const Damage& damage : chunk.damage.first) {
    if (result->damage.size() < kMostListed) result->damage.push_back({chunk.line, damage});
  }
}

}  // namespace

EventsResult ReadEvents(const uint8_t* data, const Plane& plane, const Request& request,
                        int threads) {
  std::vector<Chunk> chunks = CutIntoChunks(data, plane, request);
  std::vector<std::unique_ptr<EventDecoder>> decoders(static_cast<size_t>(std::max(threads, 1)));
  ShareTasks(threads, chunks.size(), [&](int worker, size_t at) {
    std::unique_ptr<EventDecoder>& decoder = decoders[static_cast<size_t>(worker)];
    if (!decoder) decoder = std::make_unique<EventDecoder>(data, plane, request);
    decoder->Decode(&chunks[at]);
    if (request.is_mapped) GiveBack(data, chunks[at].span);
  });
  NoteColumns(chunks, request);
  EventsResult result;
  StringCodes strings(data);
  for (const Chunk& chunk : chunks) {
    Settle(request, chunk, result.kept, &strings);
    result.kept += chunk.kept;
    AddDamage(chunk, request, &result);
  }
  for (const auto& decoder : decoders) {
    if (!decoder) continue;
    for (size_t name = 0; name < decoder->skipped().size(); ++name) {
      request.skipped[name] += decoder->skipped()[name];
    }
  }
  result.strings = strings.texts();
  return result;
}

}  // namespace moeprof::xspace
