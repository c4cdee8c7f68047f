// The report as text: ten seconds to read, the verdict last.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "gdnsim/arith.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

std::string shortest(float x) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr;
  return {buffer.data(), end};
}

float widened_word(DType type, std::uint32_t word) { return static_cast<float>(value_of(type, word)); }

std::string number(double x) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.3g", x);
  return buffer.data();
}

void print_counts(std::ostream& out, const char* title, const Comparison& comparison) {
  out << title << "\n";
  if (!comparison.note.empty()) out << "  " << comparison.note << "\n";
  if (!comparison.done) return;
  out << "  " << std::left << std::setw(11) << "tap" << std::right << std::setw(14) << "compared" << std::setw(13)
      << "differing" << std::setw(13) << "max ULP" << std::setw(12) << "max |diff|"
      << "\n";
  for (std::size_t i = 0; i < kTaps; ++i) {
    const TapCount& count = comparison.counts[i];
    if (count.compared + count.not_compared == 0) continue;
    out << "  " << std::left << std::setw(11) << name_of(static_cast<Tap>(i)) << std::right << std::setw(14)
        << count.compared << std::setw(13) << count.differing << std::setw(13) << count.max_ulp << std::setw(12)
        << number(count.max_abs);
    if (count.not_compared > 0)
      out << "   (" << count.not_compared << " of inactive rows left unwritten, not compared)";
    out << "\n";
  }
  if (comparison.snapshots > 0) out << "  states compared: " << comparison.snapshots << " blocks\n";
  if (comparison.digests_compared > 0)
    out << "  state digests compared: " << comparison.digests_compared << ", differing " << comparison.digests_differing
        << "\n";
}

std::string inputs_text(const Divergence& d, bool pair) {
  switch (d.inputs) {
    case InputsMatched::equal:
      return "equal: everything this operation read was recorded and agrees, so the fault is here";
    case InputsMatched::different:
      return "different: something this operation read differs already, so look upstream";
    case InputsMatched::unknown:
      break;
  }
  if (pair) return "unknown: not everything this operation read was in both files and agrees";
  return "unknown: not everything this operation read was recorded (state computed by us since step " +
         std::to_string(d.from_step) + ")";
}

void print_place(std::ostream& out, const Divergence& d) {
  out << "  at       step " << d.step << ", layer " << d.layer << " (model layer " << d.layer_id << "), tap "
      << name_of(d.tap);
  if (d.row >= 0) out << ", row " << d.row << ", sequence " << d.sequence;
  if (d.block >= 0) out << ", block " << d.block;
  if (d.block < 0 && d.kind == DiffClass::digest) out << " of a block that no row named";
  if (d.head >= 0) out << ", head " << d.head;
  if (d.element >= 0) out << ", element " << d.element;
  out << "\n";
}

void print_first(std::ostream& out, const Report& report, const Divergence& d) {
  const bool pair = report.files.size() == 2;
  out << "first divergence\n";
  print_place(out, d);
  if (d.kind == DiffClass::digest) {
    out << "  class    digest: the states differ; no snapshot says in which element\n";
  } else {
    const auto line = [&](const char* name, std::uint32_t word) {
      out << "  " << std::left << std::setw(9) << name << std::setw(16) << value_text(d.type, word)
          << hex_text(d.type, word) << " (" << name_of(d.type) << ")\n";
    };
    line(pair ? "A" : "recorded", d.want);
    line(pair ? "B" : "replayed", d.got);
    out << "  class    " << name_of(d.kind);
    if (d.ulp) out << ", " << *d.ulp << " ULP";
    out << "\n";
  }
  out << "  inputs   " << inputs_text(d, pair) << "\n";
  out << "mechanism\n  not searched\n";
}

/// The local first divergence, where it is not the carried one.
void print_local_first(std::ostream& out, const Report& report) {
  const auto &carried = report.carried.first, &local = report.local.first;
  if (!report.carried.done || !report.local.done || !carried) return;
  if (!local) {
    out << "first divergence, local\n  none: from each recorded state on, every step agrees; what differs was carried "
           "over\n";
  } else if (precedes(*carried, *local) || precedes(*local, *carried)) {
    out << "first divergence, local\n";
    print_place(out, *local);
  }
}

void print_contract(std::ostream& out, const Report& report) {
  const ContractSet& contracts = report.contract.contracts;
  out << "contract  " << printable(contracts.decode.name);
  if (contracts.mixed != contracts.decode)
    out << " (decode steps), " << printable(contracts.mixed.name) << " (mixed steps)";
  out << "\n";
  std::istringstream sentences(printable(report.contract.chosen_by));
  for (std::string sentence; std::getline(sentences, sentence, ';');)
    out << "          " << sentence.substr(sentence.find_first_not_of(' ')) << "\n";
}

/// Length of the UTF-8 sequence at `at`, or 0: lead byte and continuation bytes are looked at, nothing more.
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const unsigned char lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string printable(const std::string& message) {
  std::string line;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t length = utf8_length(message, at);
    const bool control = length == 1 && (static_cast<unsigned char>(message[at]) < 0x20 || message[at] == 0x7F);
    line += length == 0 || control ? "?" : message.substr(at, length);
    at += length == 0 ? 1 : length;
  }
  return line;
}

std::string value_text(DType type, std::uint32_t word) {
  const float x = widened_word(type, word);
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return shortest(x);
}

std::string hex_text(DType type, std::uint32_t word) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), type == DType::f32 ? "0x%08x" : "0x%04x", word);
  return buffer.data();
}

std::string describe(const Model& model) {
  std::ostringstream text;
  text << "H " << model.H << ", HV " << model.HV << ", K " << model.K << ", V " << model.V << ", W " << model.W << "; "
       << name_of(model.state_dtype) << " state, " << name_of(model.conv_state_dtype) << " conv state, "
       << name_of(model.act_dtype) << " activations";
  return text.str();
}

std::string layers_text(const std::vector<int>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(layers[i]);
    if (last > i) text += "-" + std::to_string(layers[last]);
    i = last + 1;
  }
  return text;
}

std::string verdict_line(const Report& report) {
  const Comparison& counted = report.carried.done ? report.carried : report.local;
  std::ostringstream text;
  text << "verdict: " << name_of(report.verdict) << ", compared " << counted.compared() << ", differing "
       << counted.differing();
  if (report.carried.done && report.local.done) text << " carried and " << report.local.differing() << " local";
  return text.str();
}

void print_text(std::ostream& out, const Report& report) {
  out << report.command;
  for (const std::string& file : report.files) out << " " << file;
  out << "\n          " << report.subject << "\n";
  if (report.has_contract) print_contract(out, report);
  if (!report.backend.empty()) out << "backend   " << report.backend << "\n";
  print_counts(out, report.files.size() == 2 ? "differences" : "carried (our own state goes on)", report.carried);
  if (report.local.done || !report.local.note.empty())
    print_counts(out, "local (each step from the recorded state before it)", report.local);
  if (report.first()) print_first(out, report, *report.first());
  print_local_first(out, report);
  for (const std::string& note : report.notes) out << "note      " << printable(note) << "\n";
  if (!report.inconclusive_because.empty()) out << "because   " << report.inconclusive_because << "\n";
  if (!report.repro.empty()) out << "repro     " << report.repro << "\n";
  if (!report.next.empty()) out << "next      " << report.next << "\n";
  out << verdict_line(report) << "\n";
}

}  // namespace gdnsim
