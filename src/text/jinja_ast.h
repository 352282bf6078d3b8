// A parsed template: expressions and statements, as the parser builds and the interpreter walks
// them. It never changes after parsing, so renderings may share it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace nibble::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

// What stands between the parentheses of a call.
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *args
  ExprPtr double_star;  // **kwargs
};

struct Expr {
  enum class Kind {
    kLiteral,       // literal
    kName,          // name
    kList,          // children
    kTuple,         // children
    kDict,          // children: key, value, key, value ...
    kAttribute,     // children[0] . name
    kItem,          // children[0] [ children[1] ]
    kSlice,         // children[0] : children[1] : children[2], null where absent; inside a kItem
    kCall,          // children[0] ( call )
    kFilter,        // children[0] | name ( call ); children[0] is null in a filter block
    kTest,          // children[0] is name ( call )
    kNot,           // children[0]
    kNegative,      // - children[0]
    kPositive,      // + children[0]
    kBinary,        // children[0] name children[1]; name is + - * / // % **
    kConcat,        // children joined by ~
    kCompare,       // children[0] operators[0] children[1] operators[1] children[2] ...
    kAnd,           // children[0] and children[1]
    kOr,            // children[0] or children[1]
    kConditional,   // children[1] if children[0] else children[2] (null if there is no else)
    kNamespaceRef,  // name . attribute, as the target of a set
  };
  Kind kind = Kind::kLiteral;
  int line = 1;
  int height = 1;  // of the tree below; bounded by the parser
  std::string name;
  std::string attribute;
  Value literal;
  std::vector<ExprPtr> children;
  std::vector<std::string_view> operators;  // kCompare: == != < <= > >= in "not in"
  CallArguments call;
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null if it has none
};

struct Branch {
  ExprPtr test;
  Body body;
};

struct Statement {
  enum class Kind {
    kText,        // text
    kPrint,       // exprs
    kIf,          // branches, otherwise
    kFor,         // for target in exprs[0] [if exprs[1]]: body, otherwise
    kSet,         // target = exprs[0]
    kSetBlock,    // target = body, through the filter exprs[0] if not null
    kMacro,       // text is its name; parameters, body
    kCall,        // body is the caller handed to the call exprs[0]; parameters
    kFilter,      // body through the filter exprs[0]
    kWith,        // exprs are values of parameters' names; body
    kGeneration,  // body: what the assistant wrote
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  ExprPtr target;
  std::vector<ExprPtr> exprs;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  Body body;
  Body otherwise;
  bool recursive = false;    // kFor
  bool uses_caller = false;  // kMacro, kCall: the body reads this name
  bool uses_kwargs = false;
  bool uses_varargs = false;
};

}  // namespace nibble::text::jinja
