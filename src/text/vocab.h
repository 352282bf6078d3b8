// The tokens of a vocabulary, by id and by text. All text lies in one buffer and the lookup is one
// open-addressed table, so that a quarter of a million tokens load in milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// A hash with a seed of the process: a file cannot know which of its strings collide.
uint64_t hash_text(std::string_view s);
uint64_t hash_number(uint64_t v);

class Vocab {
 public:
  static constexpr int32_t kMaxId = (1 << 24) - 1;

  enum class Add {
    kOk,
    kSameText,  // the text has another id already
    kSameId,    // the id has another text already
    kBadId,     // negative or above kMaxId
    kTooMuch,   // more than 1 GiB of text
  };

  void reserve(size_t tokens, size_t bytes);
  Add add(std::string_view text, int32_t id);
  // Gives `text` to `id` whatever stood there before: the last token of a text is found by it.
  Add add_or_replace(std::string_view text, int32_t id);

  std::optional<int32_t> find(std::string_view text) const;
  // find() in two halves, for many texts at once: the memory that the second half needs is on its
  // way while other first halves run.
  uint32_t start_find(std::string_view text) const;
  std::optional<int32_t> end_find(std::string_view text, uint32_t started) const;
  // The text of a token; nothing if no token has this id.
  std::optional<std::string_view> text(int32_t id) const;
  size_t count() const { return count_; }                                   // tokens
  int32_t end_id() const { return static_cast<int32_t>(entries_.size()); }  // highest id + 1
  size_t longest() const { return longest_; }  // bytes of the longest token

 private:
  struct Entry {
    uint32_t begin = 0;
    uint32_t size = kAbsent;
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };
  static constexpr uint32_t kAbsent = UINT32_MAX;

  std::string_view view(const Entry& e) const { return {bytes_.data() + e.begin, e.size}; }
  Slot* slot_of(std::string_view text, uint32_t hash);
  void put(Slot* slot, uint32_t hash, std::string_view text, int32_t id);
  void grow(size_t slots);

  std::string bytes_;
  std::vector<Entry> entries_;  // by id
  std::vector<Slot> slots_;     // a power of two, at most half full
  size_t count_ = 0;
  size_t longest_ = 0;
};

}  // namespace nibble::text
