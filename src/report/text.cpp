// The report as text: ten seconds to read, the verdict last.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

std::string number(double x) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.3g", x);
  return buffer.data();
}

/// "1: 40211, 2-3: 20121, 16-255: 9000": ULP distances, in five ranges of which the empty ones are left out.
std::string distances_text(const TapCount& count) {
  struct Range {
    const char* name;
    std::size_t from, to;
  };
  constexpr Range ranges[] = {{"1", 0, 1}, {"2-3", 1, 2}, {"4-15", 2, 4}, {"16-255", 4, 8}, {"256+", 8, kUlpBuckets}};
  std::string text;
  for (const Range& range : ranges) {
    std::uint64_t sum = 0;
    for (std::size_t i = range.from; i < range.to; ++i) sum += count.ulps[i];
    if (sum > 0) text += (text.empty() ? "" : ", ") + std::string(range.name) + ": " + std::to_string(sum);
  }
  return text.empty() ? "" : "ULP " + text;
}

/// "rounding 79000, value 453"
std::string classes_text(const TapCount& count) {
  std::string text;
  for (std::size_t i = 0; i < kDiffClasses; ++i)
    if (count.classes[i] > 0)
      text += (text.empty() ? "" : ", ") + std::string(name_of(static_cast<DiffClass>(i))) + " " +
              std::to_string(count.classes[i]);
  return text;
}

void print_spread(std::ostream& out, const TapCount& count) {
  if (count.differing == 0) return;
  const std::string distances = distances_text(count);
  out << "             " << distances << (distances.empty() ? "" : "; ") << classes_text(count) << "\n";
}

void print_counts(std::ostream& out, const char* title, const Comparison& comparison, bool spread) {
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
    if (spread) print_spread(out, count);
  }
  if (comparison.snapshots > 0) out << "  states compared: " << comparison.snapshots << " blocks\n";
  if (comparison.digests_compared > 0)
    out << "  state digests compared: " << comparison.digests_compared << ", differing " << comparison.digests_differing
        << "\n";
}

std::string inputs_text(const Divergence& d, bool pair) {
  switch (d.inputs) {
    case InputsMatched::equal:
      if (d.event) return "equal: what the event takes is recorded and agrees, so the fault is in carrying it out";
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

/// What a digest around an event says: nobody should have touched the block since, or the event left something else.
std::string event_class_text(const Divergence& d) {
  const std::string block = "block " + std::to_string(d.block);
  if (!d.event->after)
    return "the bytes of " + block + " before the event differ: it changed since a row or an event last wrote it";
  if (!changes_contents(d.event->event.kind))
    return "the bytes of " + block + " after the event differ, which leaves them as they are";
  return "the event left other bytes in " + block;
}

void print_event_place(std::ostream& out, const Divergence& d) {
  const Event& event = d.event->event;
  out << "  at       before step " << d.step << ", layer " << d.layer << " (model layer " << d.layer_id << "), event "
      << d.event->number << " (" << event_text(event) << ")";
  if (event.sequence >= 0) out << ", sequence " << event.sequence;
  out << ", block " << d.block << "\n";
}

void print_place(std::ostream& out, const Divergence& d) {
  if (d.event) return print_event_place(out, d);
  out << "  at       step " << d.step << ", layer " << d.layer << " (model layer " << d.layer_id << "), tap "
      << name_of(d.tap);
  if (d.row >= 0) out << ", row " << d.row << ", sequence " << d.sequence;
  if (d.block >= 0) out << ", block " << d.block;
  if (d.block < 0 && d.kind == DiffClass::digest) out << " of a block that no row named";
  if (d.head >= 0) out << ", head " << d.head;
  if (d.element >= 0) out << ", element " << d.element;
  out << "\n";
}

/// What a class means where its name alone misleads.
std::string class_text(const Divergence& d) {
  std::string text(name_of(d.kind));
  if (d.ulp) text += ", " + std::to_string(*d.ulp) + " ULP";
  if (d.kind == DiffClass::value)
    text += (value_of(d.type, d.got) < 0) != (value_of(d.type, d.want) < 0) ? ": of opposite sign, not a rounding"
                                                                            : ": too far apart for a rounding";
  if (d.kind == DiffClass::poison) text += ": a NaN that GPU arithmetic does not make; copied or never initialised";
  return text;
}

/// The neighbours as one picture: "=" equal, "x" different, "X" the first.
void print_near(std::ostream& out, const Divergence& d) {
  const Near& near = d.near;
  if (near.got.size() < 2) return;
  const auto end = near.from + static_cast<std::int64_t>(near.got.size());
  out << "  nearby   elements " << near.from << ":" << end << "  ";
  for (std::size_t i = 0; i < near.got.size(); ++i) {
    const bool here = near.from + static_cast<std::int64_t>(i) == d.element;
    out << (near.got[i] == near.want[i] ? '=' : here ? 'X' : 'x');
  }
  out << "  (= equal, x different, X this one)\n";
}

std::string inner_text(const InnerValue& value) {
  if (!value.word) return value.name + " " + number(value.value);
  std::string text = value.name + " " + value_text(value.type, *value.word);
  if (value.recorded && *value.recorded != *value.word)
    text += " (recorded " + value_text(value.type, *value.recorded) + ")";
  return text;
}

/// The values inside the step at that place, a few lines of at most 120 columns.
void print_inner(std::ostream& out, const std::vector<InnerValue>& inner) {
  std::string line = "  inside  ";
  for (std::size_t i = 0; i < inner.size(); ++i) {
    const std::string text = " " + inner_text(inner[i]) + (i + 1 < inner.size() ? "," : "");
    if (line.size() + text.size() > 120) {
      out << line << "\n";
      line = "          ";
    }
    line += text;
  }
  if (!inner.empty()) out << line << "\n";
}

void print_first(std::ostream& out, const Report& report, const Divergence& d) {
  const bool pair = report.files.size() == 2;
  out << "first divergence\n";
  print_place(out, d);
  if (d.event) {
    out << "  class    digest: " << event_class_text(d) << "\n";
  } else if (d.kind == DiffClass::digest) {
    out << "  class    digest: the states differ; no snapshot says in which element\n";
  } else {
    const auto line = [&](const char* name, std::uint32_t word) {
      out << "  " << std::left << std::setw(9) << name << std::setw(16) << value_text(d.type, word)
          << hex_text(d.type, word) << " (" << name_of(d.type) << ")\n";
    };
    line(pair ? "A" : "recorded", d.want);
    line(pair ? "B" : "replayed", d.got);
    out << "  class    " << class_text(d) << "\n";
    print_near(out, d);
    print_inner(out, report.inner);
  }
  out << "  inputs   " << inputs_text(d, pair) << "\n";
  if (report.writer) out << "  writer   " << report.writer->says << "\n";
}

std::string proof_text(Proof proof) {
  switch (proof) {
    case Proof::rerun:
      return "a re-run under it gives the recorded bits";
    case Proof::fact:
      return "a property of the recorded bits themselves";
    case Proof::pattern:
      break;
  }
  return "how the differences are spread; no re-run gives the recorded bits";
}

/// "    says      ..." with lines of at most 120 columns where the words allow it.
void print_wrapped(std::ostream& out, const char* name, const std::string& text) {
  constexpr std::size_t indent = 14, width = 120;
  std::istringstream words(printable(text));
  std::string line = std::string("    ") + name;
  line.resize(indent, ' ');
  for (std::string word; words >> word;) {
    if (line.size() > indent && line.size() + 1 + word.size() > width) {
      out << line << "\n";
      line.assign(indent, ' ');
    }
    line += (line.size() > indent ? " " : "") + word;
  }
  if (line.find_last_not_of(' ') >= indent) out << line << "\n";
}

void print_mechanism(std::ostream& out, const Mechanism& mechanism) {
  out << "  " << printable(mechanism.id) << " (" << scope_text(mechanism.scope) << ")\n";
  if (!mechanism.says.empty()) print_wrapped(out, "says", mechanism.says);
  if (!mechanism.evidence.empty()) print_wrapped(out, "evidence", mechanism.evidence);
  out << "    proof     " << proof_text(mechanism.proof) << "\n";
}

/// At most ten of the hypotheses that were re-run; the JSON has all.
void print_tried(std::ostream& out, const std::vector<std::string>& tried) {
  constexpr std::size_t most = 10;
  for (std::size_t i = 0; i < tried.size() && i < most; ++i)
    out << (i == 0 ? "  tried       " : "              ") << printable(tried[i]) << "\n";
  if (tried.size() > most) out << "              and " << tried.size() - most << " more (--json has all)\n";
}

bool unexplained(const Report& report) {
  return std::ranges::any_of(report.mechanisms, [](const Mechanism& m) { return m.id == "unexplained"; });
}

void print_mechanisms(std::ostream& out, const Report& report) {
  if (!report.searched && report.mechanisms.empty()) {
    if (report.first() && report.files.size() == 1) out << "mechanism\n  not searched: 'gdnsim explain' names it\n";
    return;
  }
  out << "mechanism\n";
  if (report.mechanisms.empty()) out << "  none: nothing differs, so there is nothing to explain\n";
  for (const Mechanism& mechanism : report.mechanisms) print_mechanism(out, mechanism);
  if (unexplained(report)) print_tried(out, report.tried);
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

}  // namespace

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
  for (const std::string& file : report.files) out << " " << printable(file);
  out << "\n          " << report.subject << "\n";
  if (report.has_contract) print_contract(out, report);
  if (!report.backend.empty()) out << "backend   " << report.backend << "\n";
  print_counts(out, report.files.size() == 2 ? "differences" : "carried (our own state goes on)", report.carried, true);
  if (report.local.done || !report.local.note.empty())
    print_counts(out, "local (each step from the recorded state before it)", report.local, !report.carried.done);
  if (report.first()) print_first(out, report, *report.first());
  print_local_first(out, report);
  print_mechanisms(out, report);
  for (const std::string& note : report.notes) out << "note      " << printable(note) << "\n";
  if (!report.inconclusive_because.empty()) out << "because   " << report.inconclusive_because << "\n";
  if (!report.repro.empty()) out << "repro     " << report.repro << "\n";
  if (!report.next.empty()) out << "next      " << report.next << "\n";
  out << verdict_line(report) << "\n";
}

}  // namespace gdnsim
