#include "device/free_blocks.h"

namespace tefl::device {

void FreeBlocks::add(CachedBlock* block) {
  if (block->bytes > kLargestSmall) {
    tree_.insert(block);
    return;
  }
  if (!lists_) lists_ = std::make_unique<Lists>();
  const size_t list = list_of(block->bytes);
  CachedBlock*& first = lists_->first[list];
  block->previous = nullptr;
  block->next = first;
  if (first != nullptr) first->previous = block;
  first = block;
  lists_->occupied[list / 64] |= uint64_t{1} << list % 64;
}

void FreeBlocks::remove(CachedBlock* block) {
  if (block->bytes > kLargestSmall) {
    tree_.erase(block);
    return;
  }
  const size_t list = list_of(block->bytes);
  if (block->next != nullptr) block->next->previous = block->previous;
  if (block->previous != nullptr) {
    block->previous->next = block->next;
  } else {
    lists_->first[list] = block->next;
    if (block->next == nullptr) lists_->occupied[list / 64] &= ~(uint64_t{1} << list % 64);
  }
  block->previous = block->next = nullptr;
}

CachedBlock* FreeBlocks::find(size_t bytes) const {
  if (bytes <= kLargestSmall && lists_) {
    if (CachedBlock* block = find_listed(bytes)) return block;
  }
  if (tree_.empty()) return nullptr;
  CachedBlock wanted;
  wanted.bytes = bytes;
  const auto found = tree_.lower_bound(&wanted);
  return found == tree_.end() ? nullptr : *found;
}

CachedBlock* FreeBlocks::find_listed(size_t bytes) const {
  const size_t list = list_of(bytes);
  size_t word = list / 64;
  uint64_t occupied = lists_->occupied[word] & ~uint64_t{0} << list % 64;
  while (occupied == 0) {
    if (++word == lists_->occupied.size()) return nullptr;
    occupied = lists_->occupied[word];
  }
  return lists_->first[word * 64 + static_cast<size_t>(__builtin_ctzll(occupied))];
}

}  // namespace tefl::device
