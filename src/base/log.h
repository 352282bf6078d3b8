// The library prints nothing: what it wants to say goes to a callback.
#pragma once

#include <functional>
#include <string_view>

namespace nibble::base {

enum class LogLevel { kDebug, kInfo, kWarning };
using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink (default: drops everything). Not thread-safe against concurrent log() calls;
// set it once at start.
void set_log_sink(LogSink sink);
void log(LogLevel level, std::string_view message);

}  // namespace nibble::base
