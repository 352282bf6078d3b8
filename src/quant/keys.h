// Keys of a quantization dictionary, for everything that reads one. Tools disagree on how a value
// is spelled (4, 4.0, "4"; true, "true", "True", 1); what it means is never guessed: a text that is
// no such value is an error that names dictionary, key, what was expected and what was found. Null
// counts as absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"

namespace nibble::quant {

// Whether two values that are no lists or objects say the same, in whatever spelling.
bool same_value(const base::Json& a, const base::Json& b);

// A whole number. int_key: an absent one is an error too.
Result<int64_t> int_key(const base::Json& dictionary, std::string_view key);
Result<int64_t> int_key_or(const base::Json& dictionary, std::string_view key, int64_t fallback);

// A finite number.
Result<double> double_key(const base::Json& dictionary, std::string_view key);
Result<double> double_key_or(const base::Json& dictionary, std::string_view key, double fallback);

Result<bool> bool_key_or(const base::Json& dictionary, std::string_view key, bool fallback);

// A string key with a closed list of values, in lower case; the first is the default. Error:
// another value, named with the list.
Result<std::string> choice_key(const base::Json& dictionary, std::string_view key,
                               std::initializer_list<std::string_view> values);

// The same for a key that may also be true or false, which become the words "true" and "false".
Result<std::string> word_key(const base::Json& dictionary, std::string_view key,
                             std::initializer_list<std::string_view> values);

// The names of a list of strings, or of lists of them. Empty when absent.
Result<std::vector<std::string>> names_key(const base::Json& dictionary, std::string_view key);

// The same, where one text with commas between is a list as well.
Result<std::vector<std::string>> names_or_text_key(const base::Json& dictionary,
                                                   std::string_view key);

// The members of an object of objects, in order; none when absent.
Result<base::JsonObject> objects_key(const base::Json& dictionary, std::string_view key);

// Two positive numbers, as sizes of blocks are written: [128, 128], or "128x128". (0, 0) when
// absent.
Result<std::pair<int64_t, int64_t>> pair_key(const base::Json& dictionary, std::string_view key);

// A group size along K: -1 (all inputs) becomes 0, as WeightFormat has it. Error: 0 or below -1.
Result<int64_t> group_size_key(const base::Json& dictionary, std::string_view key);

}  // namespace nibble::quant
