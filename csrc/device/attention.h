// How scaled_dot_product_attention chooses its kernel on the device.
#pragma once

namespace tefl::device {

/// Enters our choice into PyTorch's table. Cannot be undone.
void install_attention_choice();

}  // namespace tefl::device
