#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/matmul/cuda_weight.h"
#include "kernels/matmul/kernel.h"

namespace nibble::kernels {

// Shell-style: * stands for any run of characters, ? for one.
bool glob_matches(std::string_view glob, std::string_view text) {
  size_t g = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_text = t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

namespace {

constexpr Kernel kList[] = {
#define KERNEL(function, name, file, isa, packing, reads, form, rows, m_min, m_max)  \
  {name,  device::Isa::isa, Packing::packing, Reads::reads, Form::form, rows, m_min, \
   m_max, &function},
#include "kernels/matmul/kernels.inc"
#undef KERNEL
};

const char* what(Reads reads) {
  switch (reads) {
    case Reads::kInteger:
      return "integer codes";
    case Reads::kE2M1:
      return "e2m1";
    case Reads::kFloat8:
      return "8-bit floats";
    case Reads::kAny:
      break;
  }
  return "everything";
}

// Why `kernel` will not do, or "".
std::string refusal(const Kernel& kernel, const MatmulProblem& problem,
                    const device::Hardware& hardware, const MatmulPolicy& policy) {
  if (!glob_matches(policy.kernel_glob, kernel.name)) {
    return fmt::format("its name does not match --kernel {}", policy.kernel_glob);
  }
  if (kernel.isa > policy.isa) {
    return fmt::format("needs {}; --isa {} forbids it", device::name(kernel.isa),
                       device::name(policy.isa));
  }
  if (!hardware.has(kernel.isa)) {
    return fmt::format("needs {}; this machine has {}", device::name(kernel.isa),
                       device::name(hardware.best_isa()));
  }
  if (!reads(kernel, problem.weight.element)) {
    return fmt::format("reads {}; the weight is {}", what(kernel.reads),
                       tensor::name(problem.weight.element));
  }
  const std::string packing = packing_refusal(problem, kernel.packing);
  if (!packing.empty()) return packing;
  if (policy.precision == Precision::kExact && holds_integers(kernel.form)) {
    return "holds activations as 16-bit integers; --precision exact wants float";
  }
  return "";
}

// "matvec_a and 3 more: needs avx512; this machine has avx2; matmul_b: ...": each reason once.
std::string joined(const std::vector<Refusal>& refusals) {
  std::vector<std::pair<const Refusal*, int>> reasons;  // the first of each, and how many more
  for (const Refusal& each : refusals) {
    const auto it = std::find_if(reasons.begin(), reasons.end(),
                                 [&](const auto& r) { return r.first->why == each.why; });
    if (it == reasons.end()) {
      reasons.emplace_back(&each, 0);
    } else {
      ++it->second;
    }
  }
  std::string all;
  for (const auto& [first, more] : reasons) {
    all += fmt::format("{}{}{}: {}", all.empty() ? "" : "; ", first->kernel,
                       more == 0 ? "" : fmt::format(" and {} more", more), first->why);
  }
  return all;
}

}  // namespace

// --activation-dtype is about the layers whose weights are quantized.
tensor::ActivationFormat activation_for(const MatmulProblem& problem, const MatmulPolicy& policy) {
  using tensor::ActivationFormat;
  const bool as_stored = problem.activation.type != ActivationFormat::Type::kFloat ||
                         tensor::is_unscaled_float(problem.weight.element);
  switch (policy.activation) {
    case ActivationChoice::kFloat:
      return {};
    case ActivationChoice::kS8:
      if (as_stored) break;
      return {.type = ActivationFormat::Type::kS8,
              .granularity = ActivationFormat::Granularity::kGroup,
              .group = 32};
    case ActivationChoice::kE4M3:
      if (as_stored) break;
      return {.type = ActivationFormat::Type::kE4M3};
    case ActivationChoice::kAuto:
      break;
  }
  return problem.activation;
}

// How far m is from the numbers of tokens that a kernel is for.
int64_t tokens_from(const Kernel& kernel, int64_t m) {
  return std::max({int64_t{0}, kernel.m_min - m, m - kernel.m_max});
}

// The kernels that fit and read one packing, cut into ranges of M: the first in the list whose
// crossovers hold M, else (--kernel) the nearest. Every kernel can run every M.
std::vector<ChoiceRange> ranges_of(const std::vector<const Kernel*>& kernels) {
  std::set<int64_t> starts = {1};
  for (const Kernel* kernel : kernels) {
    starts.insert(kernel->m_min);
    if (kernel->m_max != INT64_MAX) starts.insert(kernel->m_max + 1);
  }
  std::vector<ChoiceRange> out;
  for (const int64_t m : starts) {
    const Kernel* kernel = *std::min_element(
        kernels.begin(), kernels.end(),
        [&](const Kernel* a, const Kernel* b) { return tokens_from(*a, m) < tokens_from(*b, m); });
    if (!out.empty() && out.back().kernel == kernel) continue;
    if (!out.empty()) out.back().m_max = m - 1;
    out.push_back({m, INT64_MAX, kernel});
  }
  return out;
}

bool reads(const Kernel& kernel, tensor::Element element) {
  using tensor::Element;
  switch (kernel.reads) {
    case Reads::kInteger:
      return tensor::is_integer(element);
    case Reads::kE2M1:
      return element == Element::kE2M1;
    case Reads::kFloat8:
      return element == Element::kE4M3 || element == Element::kE4M3FNUZ ||
             element == Element::kE5M2;
    case Reads::kAny:
      break;
  }
  return true;
}

std::span<const Kernel> all_kernels() { return kList; }

const char* kernel_name(const Kernel& kernel) { return kernel.name; }

std::vector<std::string_view> kernel_names(std::string_view glob) {
  std::vector<std::string_view> out;
  for (const std::span<const Kernel> list : {std::span<const Kernel>(kList), cuda_kernels()}) {
    for (const Kernel& kernel : list) {
      if (glob_matches(glob, kernel.name)) out.emplace_back(kernel.name);
    }
  }
  return out;
}

Choice judge(const MatmulProblem& problem, const device::Hardware& hardware,
             const MatmulPolicy& policy) {
  Choice out;
  out.activation = problem.activation;
  if (problem.n < 1 || problem.k < 1) return out;
  if (hardware.gpu) return judge_for_cuda(problem, *hardware.gpu, policy);
  auto [fitting, refused] = judged(
      kList, [&](const Kernel& kernel) { return refusal(kernel, problem, hardware, policy); });
  out.refusals = std::move(refused);
  if (fitting.empty()) return out;
  std::vector<const Kernel*> same;
  for (const Kernel* kernel : fitting) {
    if (kernel->packing == fitting.front()->packing) same.push_back(kernel);
  }
  out.packing = name(same.front()->packing);
  out.ranges = ranges_of(same);
  out.activation = activation_for(problem, policy);
  const Kernel* last = nullptr;
  for (const ChoiceRange& range : out.ranges) last = std::max(last, range.kernel);
  std::erase_if(out.refusals, [&](const Refusal& r) {
    return std::none_of(kList, last, [&](const Kernel& k) { return r.kernel == k.name; });
  });
  return out;
}

std::string none_takes(const MatmulProblem& problem, const device::Hardware& hardware,
                       const Choice& judged) {
  if (problem.n < 1 || problem.k < 1) {
    return fmt::format("a weight of {} x {} has no elements", problem.n, problem.k);
  }
  return fmt::format("no kernel multiplies a {} weight of {} x {} {}: {}",
                     tensor::to_string(problem.weight), problem.n, problem.k,
                     hardware.gpu ? "on " + hardware.gpu->name : "here", joined(judged.refusals));
}

Result<Choice> choose(const MatmulProblem& problem, const device::Hardware& hardware,
                      const MatmulPolicy& policy) {
  Choice out = judge(problem, hardware, policy);
  if (out.ranges.empty()) {
    return fail(ErrorCode::kUnsupported, none_takes(problem, hardware, out));
  }
  return out;
}

}  // namespace nibble::kernels
