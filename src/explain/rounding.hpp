// Contract choices as mechanisms. Private to explain.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "explain/twist.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/mechanism.hpp"

namespace gdnsim::explaining {

/// The mechanism that a field's change is: "beta" -> "beta-bf16", "state_dot.product" -> "dot-fma".
std::string mechanism_of_field(const std::string& field, const std::string& value);

/// One mechanism id and the changes that belong to it: "beta = bf16 (f32 expected)".
struct Choice {
  std::string id;
  std::vector<std::string> fields;
  std::string words;
};
/// The rows and steps of the path that the scope names are computed under the contract.
Twist under_contract(const std::shared_ptr<const Contract>& contract, Path path, const Scope& scope);
/// What differs between what is expected and what was found; one choice "kernel-path" when the found one is another preset's
/// whole.
std::vector<Choice> choices_between(const Contract& expected, const Contract& found);

}  // namespace gdnsim::explaining
