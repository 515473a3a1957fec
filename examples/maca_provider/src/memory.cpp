// memory.cpp: see memory.h.
#include "memory.h"

#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

#include "engine.h"
#include "status.h"

namespace maca {
namespace {

constexpr size_t kAlignment = 64;

struct Bank {
  std::unordered_map<void*, size_t> blocks;
  uint64_t used = 0;
};

struct Banks {
  std::mutex lock;
  Bank of_card[kCards];
};

// Never destroyed, as tensors may outlive static objects. One lock serves all cards.
Banks& banks() {
  static Banks& forever = *new Banks;
  return forever;
}

size_t rounded_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

[[noreturn]] void throw_full(int32_t card, size_t bytes, uint64_t left) {
  throw Error(TEFL_ERR_OUT_OF_MEMORY, "card " + std::to_string(card) + " has " + std::to_string(left) +
                                          " bytes free, " + std::to_string(bytes) + " were asked for");
}

// Takes the block out of the card's books; throws where it is not there.
void forget(int32_t card, void* pointer) {
  std::lock_guard<std::mutex> hold(banks().lock);
  Bank& bank = banks().of_card[card];
  const auto found = bank.blocks.find(pointer);
  require(found != bank.blocks.end(), "this pointer was not allocated on this card, or is free already");
  bank.used -= found->second;
  bank.blocks.erase(found);
}

}  // namespace

void* allocate(int32_t card, size_t bytes) {
  check_card(card);
  require(bytes > 0, "cannot allocate 0 bytes");
  std::lock_guard<std::mutex> hold(banks().lock);
  Bank& bank = banks().of_card[card];
  const uint64_t left = kCardMemory - bank.used;
  if (bytes > left || rounded_up(bytes) > left) throw_full(card, bytes, left);
  void* pointer = std::aligned_alloc(kAlignment, rounded_up(bytes));
  if (pointer == nullptr) throw std::bad_alloc();
  bank.blocks.emplace(pointer, rounded_up(bytes));
  bank.used += rounded_up(bytes);
  return pointer;
}

void release(int32_t card, void* pointer) {
  check_card(card);
  drain_all_cards();  // of all cards: a copy between two of them runs on one, and uses the memory of both
  forget(card, pointer);
  std::free(pointer);
}

uint64_t free_memory(int32_t card) {
  check_card(card);
  std::lock_guard<std::mutex> hold(banks().lock);
  return kCardMemory - banks().of_card[card].used;
}

}  // namespace maca
