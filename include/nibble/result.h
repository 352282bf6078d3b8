// Result<T>: a value or an Error. The member names are those of std::expected (C++23), which the
// compilers nibble is built with do not have yet.
//
//   Result<int> parse(std::string_view text);
//   NIBBLE_ASSIGN(int n, parse("12"));       // returns the error to the caller, or binds n
//   NIBBLE_TRY(write_all(n));                // the same for Result<void>
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace nibble {

// What kind of trouble it is; the message says which one.
enum class ErrorCode {
  kUsage,        // the caller asked for something that makes no sense
  kNotFound,     // a file, tensor, module or key that is not there
  kCorrupt,      // a file that lies or is damaged
  kUnsupported,  // well formed, but nibble (or this machine) cannot do it
  kIo,           // the operating system said no
  kOutOfMemory,
  kCancelled,
};

// One sentence for a person: what was read, where (file, tensor, key), expected, found, what to do.
struct Error {
  ErrorCode code = ErrorCode::kCorrupt;
  std::string message;
};

// Lets `return fail(...)` convert to any Result<T>.
struct Failure {
  Error error;
};

inline Failure fail(ErrorCode code, std::string message) {
  return Failure{Error{code, std::move(message)}};
}
inline Failure fail(Error error) { return Failure{std::move(error)}; }

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}                  // NOLINT
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}  // NOLINT

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  // Precondition of the four below: has_value().
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }

  // Precondition: !has_value().
  Error& error() & { return *std::get_if<1>(&state_); }
  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

  template <class U>
  T value_or(U&& other) const& {
    return has_value() ? value() : static_cast<T>(std::forward<U>(other));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Failure failure) : error_(std::move(failure.error)) {}  // NOLINT

  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace nibble

#define NIBBLE_CONCAT_(a, b) a##b
#define NIBBLE_CONCAT(a, b) NIBBLE_CONCAT_(a, b)

// Returns the error of `expr` (a Result) from the enclosing function, if it has one.
#define NIBBLE_TRY(expr)                                                     \
  do {                                                                       \
    auto nibble_try_ = (expr);                                               \
    if (!nibble_try_) return ::nibble::fail(std::move(nibble_try_).error()); \
  } while (false)

// Binds the value of `expr` to `decl`, or returns its error from the enclosing function.
#define NIBBLE_ASSIGN(decl, expr) \
  NIBBLE_ASSIGN_(NIBBLE_CONCAT(nibble_result_, __LINE__), decl, expr)
#define NIBBLE_ASSIGN_(tmp, decl, expr)                    \
  auto tmp = (expr);                                       \
  if (!tmp) return ::nibble::fail(std::move(tmp).error()); \
  decl = std::move(tmp).value()
