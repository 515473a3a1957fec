#include "dispatch/table.h"

#include "dispatch/state.h"

namespace tefl::dispatch {
namespace {

// Each thread keeps the tables that it has seen, so that it reads them without lock or shared count. They are
// replaced when the thread next calls the op, or go with the thread.
struct Seen {
  uint64_t version = 0;
  std::shared_ptr<const Table> table;
};

std::vector<Seen>& seen_by_this_thread() {
  thread_local std::vector<Seen> seen;
  return seen;
}

size_t next_index() {
  static std::atomic<size_t> next{0};
  return next++;
}

bool is_same_layout(at::IntArrayRef sizes, at::IntArrayRef have, at::IntArrayRef want) {
  if (have == want) return true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return true;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && have[i] != want[i]) return false;
  }
  return true;
}

}  // namespace

bool Promise::is_kept_by(const at::Tensor& result) const {
  return result.scalar_type() == dtype && result.layout() == at::kStrided && result.sizes() == sizes &&
         is_same_layout(sizes, result.strides(), strides);
}

std::shared_ptr<const Line> Table::find(const Form& form) const {
  for (size_t slot = form.hash() % kSlots; slots_[slot]; slot = (slot + 1) % kSlots) {
    if (slots_[slot]->form == form) return slots_[slot];
  }
  return nullptr;
}

std::shared_ptr<const Table> Table::with(std::shared_ptr<const Line> line) const {
  auto table = size_ < kCapacity ? std::make_shared<Table>(*this) : std::make_shared<Table>(epoch_);
  table->place(std::move(line));
  return table;
}

void Table::place(std::shared_ptr<const Line> line) {
  size_t slot = line->form.hash() % kSlots;
  while (slots_[slot] && !(slots_[slot]->form == line->form)) slot = (slot + 1) % kSlots;
  size_ += slots_[slot] == nullptr;
  slots_[slot] = std::move(line);
}

Memory::Memory() : index_(next_index()) {}

std::shared_ptr<const Line> Memory::find(const Form& form) {
  const Table* const table = current();
  if (table == nullptr || table->epoch() != state().epoch.load(std::memory_order_acquire)) return nullptr;
  return table->find(form);
}

const Table* Memory::current() {
  const uint64_t version = version_.load(std::memory_order_acquire);
  if (version == 0) return nullptr;
  auto& seen = seen_by_this_thread();
  if (seen.size() <= index_) seen.resize(index_ + 1);
  if (seen[index_].version == version) return seen[index_].table.get();
  const Gil gil;  // whoever holds it may read table_, and nobody writes it meanwhile
  Seen stale{version_.load(std::memory_order_relaxed), table_};
  const Table* const table = table_.get();
  std::swap(seen[index_], stale);
  return table;  // what is stale goes last: it may run Python code, which may call ops
}

void Memory::remember(int64_t epoch, std::shared_ptr<const Line> line) {
  drop_discarded();
  const bool is_current = table_ != nullptr && table_->epoch() == epoch;
  publish((is_current ? *table_ : Table(epoch)).with(std::move(line)));
}

void Memory::forget() { publish(nullptr); }

void Memory::publish(std::shared_ptr<const Table> table) {
  table_.swap(table);
  version_.fetch_add(1, std::memory_order_release);
}

}  // namespace tefl::dispatch
