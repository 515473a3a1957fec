// The objects behind the ABI's opaque handles.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "error.h"

namespace tefl_sim {

/// Live objects by handle, so that a NULL, foreign or destroyed handle is an error and no crash. `Handle` is
/// the ABI's pointer type; its value is the object's address.
template <typename Handle, typename Object>
class Registry {
 public:
  explicit Registry(const char* what) : what_(what) {}

  Handle add(std::shared_ptr<Object> object) {
    const auto handle = reinterpret_cast<Handle>(object.get());
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }

  std::shared_ptr<Object> find(Handle handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(handle);
    if (it == objects_.end()) unknown();
    return it->second;
  }

  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(handle);
    if (it == objects_.end()) unknown();
    std::shared_ptr<Object> object = std::move(it->second);
    objects_.erase(it);
    return object;
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Object>> objects;
    for (const auto& entry : objects_) objects.push_back(entry.second);
    return objects;
  }

 private:
  [[noreturn]] void unknown() const { invalid(std::string("not a live ") + what_ + " handle"); }

  const char* what_;
  mutable std::mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

}  // namespace tefl_sim
