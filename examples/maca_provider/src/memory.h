// memory.h: the cards' memory, which here is the host's, counted card by card.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maca {

constexpr uint64_t kCardMemory = uint64_t{4} << 30;  // bytes a card may hand out

/// Memory on `card`, aligned to 64 bytes. Throws TEFL_ERR_OUT_OF_MEMORY when the card is full.
void* allocate(int32_t card, size_t bytes);

/// Gives back what `allocate` returned, after all work enqueued so far is done: any of it may use the memory.
void release(int32_t card, void* pointer);

uint64_t free_memory(int32_t card);

}  // namespace maca
