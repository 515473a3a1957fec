#include "stray_access.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "error.h"
#include "guarded_memory.h"

namespace tefl_sim {
namespace {

struct sigaction g_before;

void write_out(const char* text) {
  const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(written);  // there is nobody left to tell
}

void explain(const void* address) {
  char place[160], message[600];
  if (!describe_closed_address(address, place, sizeof(place))) return;
  const char* remedy =
      guarding() == Guarding::kOpaque
          ? "TEFL_SIM_OPAQUE=1: no host code can; copy the tensor with .cpu()"
          : "TEFL_SIM_CHECKED=1: copy the tensor with .cpu(), take tefl.privateuse1.as_alias(tensor), or in "
            "C call host_access_begin first";
  std::snprintf(
      message, sizeof(message),
      "\ntefl sim: host code touched device memory at %p, which is %s, outside any section in which "
      "the host may (%s)\n",
      address, place, remedy);
  write_out(message);
}

// The instruction is tried again under the handler that was there before, unless that can be called.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (!forked()) explain(info->si_addr);
  if ((g_before.sa_flags & SA_SIGINFO) != 0) return g_before.sa_sigaction(signal, info, context);
  if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) return g_before.sa_handler(signal);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
}

}  // namespace

void explain_stray_access() {
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  if (sigaction(SIGSEGV, &ours, &g_before) != 0) {
    throw Failure(TEFL_ERR_INTERNAL, "the handler of SIGSEGV cannot be set");
  }
}

}  // namespace tefl_sim
