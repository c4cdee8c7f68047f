// gdnsim contracts: the presets, what they choose, and how they differ.
#include <iomanip>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string show;
  OutputOptions output;
};

nlohmann::ordered_json fields_json(const Contract& contract) {
  nlohmann::ordered_json j{{"name", contract.name}};
  for (const auto& [field, value] : contract_fields(contract)) j["fields"][field] = value;
  return j;
}

/// A table: one line a field, one column a preset; values equal to golden's are shown as a dot.
void print_table() {
  const auto presets = contract_presets();
  std::vector<std::vector<std::pair<std::string, std::string>>> columns;
  for (std::size_t i = 0; i < presets.size(); ++i) {
    std::cout << i + 1 << "  " << presets[i].name << "\n";
    columns.push_back(contract_fields(presets[i]));
  }
  std::cout << "\n" << std::left << std::setw(21) << "field";
  for (std::size_t i = 0; i < columns.size(); ++i) std::cout << std::setw(16) << i + 1;
  std::cout << "\n";
  for (std::size_t f = 0; f < columns[0].size(); ++f) {
    std::cout << std::setw(21) << columns[0][f].first << std::setw(16) << columns[0][f].second;
    for (std::size_t i = 1; i < columns.size(); ++i)
      std::cout << std::setw(16) << (columns[i][f] == columns[0][f] ? "." : columns[i][f].second);
    std::cout << "\n";
  }
  std::cout << "\n'.' is the same as in column 1. 'gdnsim contracts --show NAME > my.contract' writes one as a file "
               "that --contract reads.\n";
}

int run(const Options& options) {
  options.output.check_target({options.show});
  nlohmann::ordered_json j{{"schema", "gdnsim.contracts/1"}, {"contracts", nlohmann::ordered_json::array()}};
  if (!options.show.empty()) {
    const ContractSet set = load_contracts(options.show);
    if (!options.output.json_on_stdout()) std::cout << to_text(set);
    j["contracts"].push_back(fields_json(set.decode));
    if (set.mixed != set.decode) j["contracts"].push_back(fields_json(set.mixed));
  } else {
    if (!options.output.json_on_stdout()) print_table();
    for (const Contract& preset : contract_presets()) j["contracts"].push_back(fields_json(preset));
  }
  options.output.write_json(j);
  return kMatch;
}

}  // namespace

void add_contracts(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("contracts", "the arithmetic contracts and how they differ");
  command->footer("Example: gdnsim contracts --show triton-sm90 > my.contract");
  command
      ->add_option("--show", options->show, "print one preset or contract file in the text form that --contract reads")
      ->type_name("NAME|FILE");
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
