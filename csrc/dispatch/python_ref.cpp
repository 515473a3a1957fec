#include "dispatch/python_ref.h"

#include <torch/csrc/Exceptions.h>

#include <atomic>

namespace tefl::dispatch {
namespace {

struct Discarded {
  PyObject* object;
  Discarded* next;
};

std::atomic<Discarded*> discarded{nullptr};

}  // namespace

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void discard(PyObject* object) noexcept {
  if (object == nullptr || !Py_IsInitialized()) return;
  if (PyGILState_Check()) {
    Py_DECREF(object);
    return;
  }
  auto* const entry = new Discarded{object, discarded.load(std::memory_order_relaxed)};
  while (!discarded.compare_exchange_weak(entry->next, entry, std::memory_order_release,
                                          std::memory_order_relaxed)) {
  }
}

void drop_discarded() noexcept {
  Discarded* entry = discarded.exchange(nullptr, std::memory_order_acquire);
  while (entry != nullptr) {
    Discarded* const next = entry->next;
    Py_DECREF(entry->object);
    delete entry;
    entry = next;
  }
}

}  // namespace tefl::dispatch
