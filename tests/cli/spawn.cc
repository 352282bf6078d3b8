#include "cli/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(size_t end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  int read_end() const { return ends[0]; }
  int write_end() const { return ends[1]; }
  std::array<int, 2> ends{-1, -1};
};

[[noreturn]] void become(const Spawn& spawn, const Pipe& in, const Pipe& out, const Pipe& err) {
  dup2(in.read_end(), STDIN_FILENO);
  dup2(out.write_end(), STDOUT_FILENO);
  dup2(err.write_end(), STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  for (const std::string& entry : spawn.environment) putenv(strdup(entry.c_str()));
  std::vector<char*> argv;
  for (const std::string& argument : spawn.arguments) argv.push_back(strdup(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

// One read; false at the end.
bool drain(int descriptor, std::string& into) {
  std::array<char, 1 << 16> piece;
  const ssize_t got = read(descriptor, piece.data(), piece.size());
  if (got <= 0) return false;
  into.append(piece.data(), static_cast<size_t>(got));
  return true;
}

}  // namespace

Ran run(const Spawn& spawn, double limit) {
  Pipe in, out, err;
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pid_t child = fork();
  if (child == 0) become(spawn, in, out, err);
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  signal(SIGPIPE, SIG_IGN);
  // The tests' inputs fit into a pipe's buffer.
  if (write(in.write_end(), spawn.input.data(), spawn.input.size()) < 0) in.close_end(1);
  in.close_end(1);

  Ran ran;
  bool acted = false;
  while (out.read_end() >= 0 || err.read_end() >= 0) {
    std::array<pollfd, 2> waiting = {{{out.read_end(), POLLIN, 0}, {err.read_end(), POLLIN, 0}}};
    poll(waiting.data(), waiting.size(), 100);
    if (waiting[0].revents != 0 && !drain(out.read_end(), ran.out)) out.close_end(0);
    if (waiting[1].revents != 0 && !drain(err.read_end(), ran.err)) err.close_end(0);
    if (!ran.out.empty() && !acted) {
      acted = true;
      if (spawn.interrupt_early) kill(child, SIGINT);
      if (spawn.close_stdout_early) out.close_end(0);
    }
    if (elapsed() > limit) kill(child, SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ran.seconds = elapsed();
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ran.signal = WTERMSIG(status);
  return ran;
}

}  // namespace nibble::cli
