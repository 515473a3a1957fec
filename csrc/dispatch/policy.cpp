#include "dispatch/policy.h"

#include "dispatch/state.h"

namespace tefl::dispatch {
namespace {

constexpr int64_t kUnset = -1;

struct Applied {
  int64_t token = kUnset;
  // The innermost context when the token was applied; another one now was entered after that. Owned.
  PyObject* frame = nullptr;
};

thread_local Applied applied;

PyObject* context_variable = nullptr;

PyRef attribute(PyObject* object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object, name);
  if (value == nullptr) throw_python_error();
  return PyRef::steal(value);
}

int64_t number_in(PyObject* object) {
  const int64_t number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw_python_error();
  return number;
}

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// The context that applies, if one does.
struct Context {
  PyRef frame;
  int64_t token = 0;
};

// The innermost context that is open. The GIL must be held.
Context innermost() {
  static PyObject* const token = interned("token");
  static PyObject* const parent = interned("parent");
  PyObject* found = nullptr;
  if (context_variable == nullptr) return {};
  if (PyContextVar_Get(context_variable, nullptr, &found) < 0) throw_python_error();
  PyRef frame = PyRef::steal(found);
  while (frame && frame.get() != Py_None) {
    const PyRef number = attribute(frame.get(), token);  // None once the context has been left
    if (number.get() != Py_None) return {std::move(frame), number_in(number.get())};
    frame = attribute(frame.get(), parent);
  }
  return {};
}

bool contexts_are_open() { return state().open_contexts.load(std::memory_order_relaxed) != 0; }

}  // namespace

void set_context_variable(PyObject* variable) { context_variable = Py_NewRef(variable); }

int64_t current_token() {
  if (!contexts_are_open()) return applied.token == kUnset ? 0 : applied.token;
  const Gil gil;
  const Context context = innermost();
  return applied.token != kUnset && context.frame.get() == applied.frame ? applied.token : context.token;
}

TokenGuard::TokenGuard(int64_t token) : outer_token_(applied.token), outer_frame_(applied.frame) {
  PyObject* frame = nullptr;
  if (contexts_are_open()) {
    const Gil gil;
    drop_discarded();  // the frames of earlier guards, which a backward lets go of without the GIL
    frame = innermost().frame.release();
  }
  applied = {token, frame};
}

TokenGuard::~TokenGuard() {
  discard(applied.frame);
  applied = {outer_token_, outer_frame_};
}

}  // namespace tefl::dispatch
