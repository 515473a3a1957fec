// Owned references to Python objects that may be dropped by any thread, with or without the GIL.
#pragma once

#include <Python.h>

#include <utility>

namespace tefl::dispatch {

// Holds the GIL. pybind11's own does the same through more book-keeping, which counts on this path.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Drops a reference: at once where the GIL is held, else when somebody next calls drop_discarded. A thread
// that ends, or a process that is past its interpreter's end, must not wait for the GIL.
void discard(PyObject* object) noexcept;

// Drops what was discarded without the GIL. The GIL must be held.
void drop_discarded() noexcept;

// Throws the Python exception that is set, for whoever catches it on whichever thread.
[[noreturn]] void throw_python_error();

class PyRef {
 public:
  PyRef() = default;
  ~PyRef() { discard(object_); }
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  PyRef(const PyRef&) = delete;
  PyRef& operator=(const PyRef&) = delete;

  // Takes over a new reference, which may be null.
  static PyRef steal(PyObject* object) { return PyRef(object); }
  // Adds a reference. The GIL must be held.
  static PyRef borrow(PyObject* object) {
    Py_XINCREF(object);
    return PyRef(object);
  }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit PyRef(PyObject* object) : object_(object) {}
  PyObject* object_ = nullptr;
};

}  // namespace tefl::dispatch
