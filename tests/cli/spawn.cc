#include "cli/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
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

[[noreturn]] void become(const Spawn& spawn) {
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

void wait_for_end(pid_t child, Ran& ran) {
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ran.signal = WTERMSIG(status);
}

}  // namespace

Ran run(const Spawn& spawn, double limit) {
  Pipe in, out, err;
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pid_t child = fork();
  if (child == 0) {
    dup2(in.read_end(), STDIN_FILENO);
    dup2(out.write_end(), STDOUT_FILENO);
    dup2(err.write_end(), STDERR_FILENO);
    become(spawn);
  }
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
  wait_for_end(child, ran);
  ran.seconds = elapsed();
  return ran;
}

bool has_terminals() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0) return false;
  const bool usable = grantpt(master) == 0 && unlockpt(master) == 0;
  close(master);
  return usable;
}

Ran run_on_terminal(const Spawn& spawn, const std::vector<Step>& steps, double limit) {
  Ran ran;
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int terminal = -1;
  const winsize size{40, spawn.columns, 0, 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("forkpty");
  if (child == 0) become(spawn);
  size_t step = 0, seen = 0;
  while (true) {
    pollfd waiting = {terminal, POLLIN, 0};
    if (poll(&waiting, 1, 100) > 0 && !drain(terminal, ran.out)) break;
    if (step < steps.size()) {
      const size_t at = ran.out.find(steps[step].wait_for, seen);
      if (at != std::string::npos) {
        seen = ran.out.size();
        const std::string& text = steps[step++].type;
        if (write(terminal, text.data(), text.size()) < 0) break;
      }
    }
    if (elapsed() > limit) kill(child, SIGKILL);
  }
  wait_for_end(child, ran);
  ran.seconds = elapsed();
  close(terminal);
  return ran;
}

}  // namespace nibble::cli
