#include "text/vocab.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace nibble::text {
namespace {

uint64_t process_seed() {
  // Where the loader put this variable and the clock: enough that a file cannot know it.
  static const int anchor = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return reinterpret_cast<uintptr_t>(&anchor) * 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(now);
}

uint64_t seed() {
  static const uint64_t value = process_seed();
  return value;
}

uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr uint64_t kOdd = 0xd6e8feb86659fd93u;

}  // namespace

uint64_t hash_text(std::string_view s) {
  uint64_t h = seed() ^ s.size();
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, s.data() + i, 8);
    h = mix(h ^ word, kOdd);
  }
  uint64_t rest = 0;
  for (size_t k = 0; i < s.size(); ++i, k += 8) {
    rest |= uint64_t{static_cast<unsigned char>(s[i])} << k;
  }
  return mix(h ^ rest, kOdd ^ (h << 1 | 1));
}

uint64_t hash_number(uint64_t v) { return mix(v ^ seed(), kOdd); }

void Vocab::reserve(size_t tokens, size_t bytes) {
  entries_.reserve(tokens);
  bytes_.reserve(bytes);
  size_t slots = 16;
  while (slots < tokens * 2) slots *= 2;
  if (slots > slots_.size()) grow(slots);
}

Vocab::Slot* Vocab::slot_of(std::string_view text, uint32_t hash) {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    Slot& slot = slots_[i];
    if (slot.id < 0) return &slot;
    if (slot.hash == hash && view(entries_[static_cast<size_t>(slot.id)]) == text) return &slot;
  }
}

void Vocab::grow(size_t slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, Slot{});
  const size_t mask = slots - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t i = slot.hash & mask;
    while (slots_[i].id >= 0) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

void Vocab::put(Slot* slot, uint32_t hash, std::string_view text, int32_t id) {
  const auto index = static_cast<size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size())};
  bytes_.append(text);
  if (slot->id < 0) ++count_;
  *slot = {hash, id};
  longest_ = std::max(longest_, text.size());
}

Vocab::Add Vocab::add(std::string_view text, int32_t id) {
  if (id < 0 || id > kMaxId) return Add::kBadId;
  if (bytes_.size() + text.size() > kMaxBytes) return Add::kTooMuch;
  const auto index = static_cast<size_t>(id);
  if (index < entries_.size() && entries_[index].size != kAbsent) return Add::kSameId;
  if ((count_ + 1) * 2 > slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
  const auto hash = static_cast<uint32_t>(hash_text(text));
  Slot* slot = slot_of(text, hash);
  if (slot->id >= 0) return Add::kSameText;
  put(slot, hash, text, id);
  return Add::kOk;
}

Vocab::Add Vocab::add_or_replace(std::string_view text, int32_t id) {
  if (id < 0 || id > kMaxId) return Add::kBadId;
  if (bytes_.size() + text.size() > kMaxBytes) return Add::kTooMuch;
  if ((count_ + 1) * 2 > slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
  const auto hash = static_cast<uint32_t>(hash_text(text));
  put(slot_of(text, hash), hash, text, id);
  return Add::kOk;
}

uint32_t Vocab::start_find(std::string_view text) const {
  const auto hash = static_cast<uint32_t>(hash_text(text));
  if (!slots_.empty()) __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]);
  return hash;
}

std::optional<int32_t> Vocab::end_find(std::string_view text, uint32_t started) const {
  if (slots_.empty()) return std::nullopt;
  const size_t mask = slots_.size() - 1;
  for (size_t i = started & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id < 0) return std::nullopt;
    if (slot.hash == started && view(entries_[static_cast<size_t>(slot.id)]) == text) {
      return slot.id;
    }
  }
}

std::optional<int32_t> Vocab::find(std::string_view text) const {
  return end_find(text, static_cast<uint32_t>(hash_text(text)));
}

std::optional<std::string_view> Vocab::text(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= entries_.size()) return std::nullopt;
  const Entry& e = entries_[static_cast<size_t>(id)];
  if (e.size == kAbsent) return std::nullopt;
  return view(e);
}

}  // namespace nibble::text
