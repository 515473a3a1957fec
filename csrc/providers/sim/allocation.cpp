#include "allocation.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "error.h"

namespace tefl_sim {
namespace {

constexpr size_t kAlignment = 64;

size_t rounded(size_t bytes, size_t unit) {
  if (bytes > PTRDIFF_MAX - unit) throw std::bad_alloc();
  return (bytes + unit - 1) / unit * unit;
}

char* mapped(int file, size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

// A file descriptor that is closed with this object. What is mapped stays.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : file_(memfd_create("tefl_sim", MFD_CLOEXEC)) {
    if (file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes)) == 0) return;
    if (file_ >= 0) close(file_);
    throw std::bad_alloc();
  }
  ~SharedMemory() { close(file_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int file() const { return file_; }

 private:
  const int file_;
};

}  // namespace

Allocation::Allocation(size_t bytes, Guarding guarding) : bytes_(bytes) {
  if (guarding == Guarding::kNone) {
    own_ = static_cast<char*>(std::aligned_alloc(kAlignment, rounded(bytes, kAlignment)));
    if (own_ == nullptr) throw std::bad_alloc();
    public_ = own_;
    return;
  }
  mapped_ = rounded(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  const SharedMemory memory(mapped_);
  own_ = mapped(memory.file(), mapped_, PROT_READ | PROT_WRITE);
  try {
    public_ = mapped(memory.file(), mapped_, PROT_NONE);
  } catch (const std::bad_alloc&) {
    munmap(own_, mapped_);
    throw;
  }
}

Allocation::~Allocation() {
  if (mapped_ == 0) {
    std::free(own_);
  } else {
    munmap(public_, mapped_);
    munmap(own_, mapped_);
  }
}

void Allocation::open() {
  if (openings_++ == 0) protect(PROT_READ | PROT_WRITE);
}

void Allocation::close() {
  if (openings_ == 0) invalid("host_access_end without a begin");
  if (--openings_ == 0) protect(PROT_NONE);
}

void Allocation::protect(int protection) const {
  if (mapped_ == 0 || mprotect(public_, mapped_, protection) == 0) return;
  throw Failure(TEFL_ERR_INTERNAL, "mprotect refused to open or close device memory");
}

}  // namespace tefl_sim
