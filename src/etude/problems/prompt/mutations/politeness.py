"""What a request can do without: greetings, thanks, small talk, the wrapping of a question, words that say nothing.

All patterns are for text in lower case.
"""

from __future__ import annotations

import re

from etude.problems.prompt.mutations.wording import words

GREAT = "(?:great|nice|good|wonderful|lovely|awesome|helpful|appreciated)"
YOU_ARE = "you(?:'re| are)"
I_AM = "(?:i'm |i am |we are |we're )"
VERY = "(?:really |very |so |super |truly |greatly |very much )"
YOUR_HELP = "(?:your|any|all your) (?:kind |great )?(?:help|time|support|assistance|patience|efforts?|attention)"
RESULT = "(?:it|this|the results?|your (?:answer|reply|response|help)|what you (?:come up with|think))"
NEXT_TIME = "(?:day|one|week|weekend|evening|morning|afternoon)"
MUCH = "(?: so much| very much| a lot| a million| again| greatly)"

SMALL_TALK = re.compile(
    "|".join(
        (
            r"(?:hi|hello|hey|greetings|good (?:morning|afternoon|evening|day))(?: there| again| all| everyone)?",
            rf"i (?:really |do )?hope (?:that )?(?:{YOU_ARE}|this (?:message |note )?finds you|everything is|all is)"
            r" (?:doing )?(?:well|good|great|fine|okay|ok)(?: today)?",
            rf"i (?:really |do )?hope (?:that )?(?:{YOU_ARE} having|you have) an? {GREAT} {NEXT_TIME}",
            r"how are you(?: doing)?(?: today)?",
            rf"(?:many |ok )?thank(?:s| you){MUCH}*(?: in advance)?(?: for {YOUR_HELP})?(?: with this| in advance)?",
            rf"i(?: would|'d)? {VERY}?appreciate (?:it|this|that|{YOUR_HELP}){MUCH}?(?: in advance)?",
            rf"any help (?:is|would be|will be) (?:much |highly )?{VERY}?appreciated",
            rf"(?:it|that) would be {VERY}?{GREAT}(?: to me| for me| to us)?",
            r"(?:it|that) would mean a lot(?: to me| to us)?",
            rf"{I_AM}?{VERY}?(?:sorry|apologies) (?:for|to) (?:bother(?:ing)?|disturb(?:ing)?) you",
            rf"{I_AM}?{VERY}?(?:sorry|apologies) for (?:the|any) (?:trouble|inconvenience|long (?:message|prompt))",
            rf"i know (?:that )?(?:{YOU_ARE} {VERY}?(?:busy|great at this|good at this)|this is a lot(?: to ask)?)",
            rf"{YOU_ARE} (?:the best|awesome|amazing|a lifesaver)",
            rf"(?:i wish you |have )an? {GREAT} {NEXT_TIME}",
            rf"{I_AM}{VERY}?(?:excited|happy|glad|curious)(?: about this| to see {RESULT})?",
            rf"(?:i )?(?:can't|cannot|can not) wait(?: to see {RESULT})?",
            rf"{I_AM}?looking forward to (?:hearing from you|seeing {RESULT}|{RESULT})",
            r"i have (?:a|one|another) (?:quick |small |little |simple )?(?:question|favou?r|request|task)"
            r"(?: for you| to ask)?",
            r"i (?:really |just )?need (?:some|your|a little) help(?: here)?(?: with (?:this|something))?",
            r"i hope (?:this|that) (?:makes sense|is (?:clear|okay|ok|fine))|does that make sense|if that makes sense",
            r"i(?:'ve| have) been (?:thinking|struggling|working|stuck) (?:about|with|on) (?:this|it) for "
            r"(?:a while|a long time|hours|days|weeks|some time|ages)(?: now)?",
        )
    )
)
"""Whole sentences, without their end mark, that say nothing about the task."""

POLITE = re.compile(r"\b(?:please|kindly|thanks|thank you)\b")
"""What makes no difference between two sentences."""

KINDLY = "(?:please |kindly |maybe |possibly )*"
REQUEST = re.compile(
    rf"(?:can|could|would|will) you {KINDLY}(?=(?P<asked>[a-z]+)\b)"
    rf"|i(?: would|'d)? (?:really )?(?:like|love|want|need) you to {KINDLY}(?=(?P<wanted>[a-z]+)\b)"
    rf"|i (?:was |am )?wondering (?:if|whether) you (?:could|can|would|might) {KINDLY}(?=(?P<wondered>[a-z]+)\b)"
    rf"|(?:it would be {GREAT}|i(?:'d| would) (?:really )?appreciate it|i(?:'d| would) be {VERY}?grateful)"
    rf" if you (?:could|can|would) {KINDLY}(?=(?P<liked>[a-z]+)\b)"
)
"""The wrapping of a request; a verb follows."""
NO_TASKS = words("know feel understand imagine see notice remember be have like want wait stop")
"""Verbs after `I want you to` that ask for nothing."""

OPENER = re.compile(
    "(?:"
    + "|".join(
        (
            r"please(?:,| note that| be aware that| be so kind as to)?\s+|note that\s+|kindly\s+",
            r"(?:and|also),? please\s+",
            r"(?:so|well|ok|okay|alright|anyway|basically|honestly|frankly|obviously|actually),\s+",
            r"(?:hi|hello|hey)(?: there)?[,!]\s+",
            r"(?:as you (?:may |might |probably )*know|as we all know|needless to say|as a matter of fact),\s+",
            r"(?:to be (?:perfectly |completely )?honest|first of all|if you don't mind),\s+",
            r"when you have (?:a moment|time),\s+",
            r"as i (?:said|mentioned)(?: before| above| earlier)?,\s+",
            r"(?:if it's not too much trouble|if that's ok(?:ay)?(?: with you)?),\s+",
            r"(?:it is|it's) (?:very |really )?(?:important|worth) (?:to note|to mention|noting|mentioning) that\s+",
            r"(?:it should be noted|i (?:would|'d) like to (?:point out|mention|add|note)|i just want to say) that\s+",
        )
    )
    + r")(?=[a-z{\"“])"
)
"""What a sentence can begin without."""

CLOSER = re.compile(
    r",?\s+(?:please|thanks|thank you|thanks in advance|thank you in advance|thanks a lot|for me please|"
    r"if you don't mind|if that's ok(?:ay)?(?: with you)?|if it's not too much trouble|if that makes sense|"
    r"at your earliest convenience)(?=[.!?]*$)"
)
"""What a sentence can end without."""

SHORTER = {
    "in order to": "to",
    "so as to": "to",
    "due to the fact that": "because",
    "because of the fact that": "because",
    "in view of the fact that": "because",
    "despite the fact that": "although",
    "in spite of the fact that": "although",
    "at this point in time": "now",
    "at the present moment": "now",
    "for the purpose of": "for",
    "in the event that": "if",
    "with regard to": "about",
    "in regard to": "about",
    "a large number of": "many",
    "a great number of": "many",
    "each and every": "every",
    "first and foremost": "first",
    "has the ability to": "can",
    "have the ability to": "can",
    "until such time as": "until",
    "in close proximity to": "near",
    "make use of": "use",
    "take into consideration": "consider",
    "very very": "very",
    "really really": "really",
}
FILLER = re.compile(
    rf"\b(?:{'|'.join(SHORTER)})\b"
    r"|(?<=[a-z,] )(?:basically|kindly) (?=[a-z])|(?<=, )(?:please )?note that (?=[a-z])|(?<=, )please (?=[a-z])"
)
"""What can be said in fewer words, or not at all, anywhere in a sentence."""
