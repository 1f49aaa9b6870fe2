// cuda_on_cpu_crash.h: a crash of a kernel, for example by an invalid address, ends its grid but not the process.
// Included by cuda_on_cpu.h.
#pragma once

#if defined(CUDA_ON_CPU_ALIGNMENT) || defined(CUDA_ON_CPU_WATCH)
namespace cuda_on_cpu {

CUDA_ON_CPU_STATE struct Crash {
  volatile bool armed = false;   // a fiber runs
  volatile int signal = 0;       // the signal that ended it
  void* volatile address = nullptr;
  pthread_t launcher;            // the OS thread that runs the launch
} crash;
CUDA_ON_CPU_STATE thread_local bool crashed = false;  // a kernel or launcher crashed since Python last asked
CUDA_ON_CPU_STATE thread_local jmp_buf* launcher_jump = nullptr;  // leaves a launcher's own code

constexpr int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
CUDA_ON_CPU_STATE struct sigaction handlers_before[sizeof crash_signals / sizeof(int)];

CUDA_ON_CPU_MACHINERY inline const char* crash_name(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE, such as an integer division by zero";
    case SIGILL: return "SIGILL, such as a trap";
    default: return "SIGABRT, such as a failed assert()";
  }
}

// Jumps out of the fiber, which is never resumed; the handler has its own stack. A signal outside of kernels goes to
// the previous handler.
CUDA_ON_CPU_MACHINERY inline void on_crash(int signal, siginfo_t* info, void* context) {
  if (crash.armed && pthread_equal(crash.launcher, pthread_self())) {
    crash.signal = signal;
    crash.address = info->si_addr;
    _longjmp(scheduler_jump, 1);
  }
  if (launcher_jump) _longjmp(*launcher_jump, signal);
  int index = 0;
  while (crash_signals[index] != signal) ++index;
  const struct sigaction& before = handlers_before[index];
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  sigaction(signal, &before, nullptr);
  raise(signal);
}

// A handler cannot run on a stack that has overflowed.
struct SignalStack {
  char* memory = nullptr;
  void provide() {
    stack_t stack{};
    if (sigaltstack(nullptr, &stack) || !(stack.ss_flags & SS_DISABLE)) return;
    constexpr size_t size = 64 * 1024;
    if (!memory) memory = new char[size];
    stack.ss_sp = memory;
    stack.ss_size = size;
    stack.ss_flags = 0;
    sigaltstack(&stack, nullptr);
  }
  ~SignalStack() {
    stack_t stack{};
    stack.ss_flags = SS_DISABLE;
    if (memory) sigaltstack(&stack, nullptr);
    delete[] memory;
  }
};

// SA_NODEFER: a jump out of the handler must not leave the signal blocked. Installed once and never removed: handlers
// of several libraries, removed in another order than installed, would restore each other.
CUDA_ON_CPU_MACHINERY inline bool install_handlers() {
  struct sigaction action{};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < sizeof crash_signals / sizeof(int); ++i)
    sigaction(crash_signals[i], &action, &handlers_before[i]);
  return true;
}

CUDA_ON_CPU_MACHINERY inline void catch_crashes() {
  static thread_local SignalStack stack;
  stack.provide();
  static const bool once = install_handlers();
  static_cast<void>(once);
}

// Runs a fiber; a crash becomes the block's failure. The heap must not be used before the jump is done.
CUDA_ON_CPU_MACHINERY inline void run(Fiber* fiber) {
  crash.signal = 0;
  crash.launcher = pthread_self();
  crash.armed = true;
  resume(fiber);
  crash.armed = false;
  if (!crash.signal) return;
  crashed = true;
  const bool at = crash.signal == SIGSEGV || crash.signal == SIGBUS;
  if (at) watch_crash();
  Text& reason = fail();
  reason.add("thread (%u, %u, %u) crashed: %s", self->thread.x, self->thread.y, self->thread.z,
             crash_name(crash.signal));
  if (at) reason.add(" at address %p", crash.address);
}

// Used around a launch: a jump out of this code would leave it locked.
struct NoLauncherJump {
  jmp_buf* const before = launcher_jump;
  NoLauncherJump() { launcher_jump = nullptr; }
  ~NoLauncherJump() { launcher_jump = before; }
};

// Calls a launcher, whose own code may crash like its kernels.
template <class Call>
int surviving(Call call) {
  catch_crashes();
  jmp_buf jump;
  if (const int signal = _setjmp(jump)) {
    launcher_jump = nullptr;
    crashed = true;
    report(cudaErrorLaunchFailure).add("the launcher crashed outside of its kernels: %s", crash_name(signal));
    return cudaErrorLaunchFailure;
  }
  launcher_jump = &jump;
  const int status = call();
  launcher_jump = nullptr;
  return status;
}

}  // namespace cuda_on_cpu

// The error of a crash since the last call of this function, even if the launcher ignored it; else 0.
extern "C" CUDA_ON_CPU_ONCE int crosscheck_crashed() {
  if (!cuda_on_cpu::crashed) return 0;
  cuda_on_cpu::crashed = false;
  cuda_on_cpu::last_error = cudaSuccess;
  return cuda_on_cpu::told_error;
}
#else  // a sanitizer's own runtime reports a crash
namespace cuda_on_cpu {
inline void catch_crashes() {}
struct NoLauncherJump {
  NoLauncherJump() {}  // declared, so that compilers do not warn of an unused variable
};
CUDA_ON_CPU_MACHINERY inline void run(Fiber* fiber) { resume(fiber); }
template <class Call>
int surviving(Call call) {
  return call();
}
}  // namespace cuda_on_cpu
extern "C" CUDA_ON_CPU_ONCE int crosscheck_crashed() { return 0; }
#endif
