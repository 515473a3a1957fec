#include "ccl/ledger.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

namespace tefl::ccl {
namespace {

constexpr size_t kMostForms = 256;  // a program whose shapes all differ shall not fill the store
constexpr char kDifference[] = "tefl/difference";

std::string key_of(const Call& call) { return "tefl/call/" + std::to_string(call.number); }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

bool Ledger::Form::operator==(const Form& other) const {
  return numel == other.numel && dtype == other.dtype && name == other.name && detail == other.detail;
}

std::string Ledger::Form::text() const {
  return std::string(name) + " of " + std::to_string(numel) + " x " + c10::toString(dtype) + detail;
}

size_t Ledger::Hash::operator()(const Form& form) const {
  return c10::get_hash(form.name, form.numel, static_cast<int>(form.dtype), form.detail);
}

bool Ledger::is_new(const Form& form) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return seen_.size() < kMostForms && seen_.insert(form).second;
}

void Ledger::compare(const Call& call, const std::string& detail) {
  if (call.size == 1) return;
  const Form numbers{call.name, call.numel, call.dtype, detail};
  if (!is_new(numbers)) return;
  const std::string form = numbers.text();
  if (call.rank == 0) return store_->set(key_of(call), bytes_of(form));
  std::string theirs;
  try {
    store_->wait({key_of(call)}, timeout_);
    theirs = text_of(store_->get(key_of(call)));
  } catch (const std::exception&) {  // whatever the store says: rank 0 did not come, or is gone
    fail(call, "rank 0 announced no such call as its #" + std::to_string(call.number) + " within " +
                   std::to_string(timeout_.count()) + " ms: it is late, gone, or calls something else" +
                   known_difference());
  }
  if (theirs == form) return;
  tell("rank 0 calls " + theirs + " as #" + std::to_string(call.number) + ", rank " +
       std::to_string(call.rank) + " calls " + form);
  fail(call, "rank 0 calls " + theirs + " where this rank calls " + form +
                 "; all ranks must call the same, with the same dtype and number of elements");
}

std::string Ledger::known_difference() noexcept {
  try {
    if (!store_->check({kDifference})) return "";
    return " (" + text_of(store_->get(kDifference)) + ")";
  } catch (const std::exception&) {  // the store went down with the rank that kept it
    return "";
  }
}

void Ledger::tell(const std::string& text) noexcept {
  try {
    store_->set(kDifference, bytes_of(text));
  } catch (const std::exception&) {
    // The others will learn of it by their time-outs.
  }
}

}  // namespace tefl::ccl
