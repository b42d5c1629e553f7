# ruff: noqa: E501
"""Write the training corpus: deterministic stories and short answers from a hand-written grammar.

Why a generator and not a downloaded data set: every sentence below was written for this project,
so the corpus, and the weights trained on it, carry no third-party licence. The same counts and
seeds give the same bytes on every machine.

A document is one of
  45%  a plain story;
  30%  a chat in which the user asks for a story, often naming the hero and an object;
  18%  a chat with a short answer: counting, opposites, days, the glossary of serving terms, ...
   7%  such a short answer as plain "Question: ... Answer: ..." text.

Output: DATA/train.jsonl and DATA/validation.jsonl, one JSON string a line.
"""

import argparse
import json
import random
import re
from pathlib import Path

# fmt: off
# The grammar. Each entry of a table has the same chance, so an entry that is listed twice (such as
# "girl") comes twice as often. The order matters too: it decides what a seed yields.

# (species, pronoun); "it" becomes "he" or "she" when a name is drawn
HEROES = [
    ("fox", "it"), ("rabbit", "it"), ("bear", "it"), ("mouse", "it"), ("cat", "it"),
    ("dog", "it"), ("duck", "it"), ("owl", "it"), ("frog", "it"), ("hedgehog", "it"),
    ("squirrel", "it"), ("turtle", "it"), ("dragon", "it"), ("robot", "it"), ("penguin", "it"),
    ("lamb", "it"), ("pony", "it"), ("girl", "she"), ("boy", "he"), ("girl", "she"),
    ("boy", "he"), ("princess", "she"), ("farmer", "he"), ("baker", "she"), ("sailor", "he"),
    ("wizard", "he"),
]
SHE_NAMES = [
    "Mia", "Lily", "Anna", "Ella", "Rosa", "Zoe", "Nora", "Ivy", "Ruby", "Clara", "Molly",
    "Tess", "Dora", "Fern", "Lucy", "Maya",
]
HE_NAMES = [
    "Tim", "Ben", "Max", "Leo", "Sam", "Tom", "Finn", "Oscar", "Hugo", "Jack", "Otto", "Theo",
    "Pip", "Gus", "Milo", "Noah",
]
ADJECTIVES = [
    "little", "small", "kind", "brave", "shy", "happy", "curious", "clever", "gentle", "sleepy",
    "young", "cheerful", "quiet", "hungry", "funny",
]
OBJECTS = [
    "ball", "kite", "boat", "drum", "hat", "lamp", "book", "bell", "key", "cup", "basket",
    "blanket", "scarf", "balloon", "flute", "toy train", "doll", "ring", "shell", "map", "box",
    "spoon", "button", "feather", "coin", "umbrella",
]
OBJECT_ADJECTIVES = [
    "red", "blue", "green", "yellow", "shiny", "tiny", "big", "old", "new", "golden", "soft",
    "round", "striped", "white", "purple",
]
PLACES = [
    "the forest", "the garden", "the park", "the village", "the river", "the beach", "the hill",
    "the farm", "the lake", "the meadow", "the old mill", "the mountain", "the market",
    "the castle", "the orchard",
]
HOMES = [
    "a small house", "a warm cottage", "a cosy den", "a little hut", "a tall tower",
    "a round house", "an old barn", "a tiny room",
]
FOODS = [
    "apples", "berries", "bread", "honey", "soup", "cake", "nuts", "carrots", "pancakes",
    "cookies", "pears", "cheese",
]
WEATHERS = [
    "sunny", "rainy", "windy", "cold", "warm", "cloudy", "snowy", "bright", "foggy",
]
COLOURS = [
    "red", "blue", "green", "yellow", "purple", "white", "black", "orange",
]
MORALS = {
    "share": [
        "Sharing makes everyone happy.", "Things are better when we share.",
        "A shared treat tastes twice as good.",
    ],
    "help": [
        "It is good to help others.", "Helping a friend feels wonderful.",
        "A little help can go a long way.", "Kind hands make light work.",
    ],
    "brave": [
        "Being brave means trying even when you are afraid.", "Small steps can beat big fears.",
        "Courage grows when you use it.",
    ],
    "honest": [
        "It is always best to tell the truth.", "The truth makes the heart light.",
        "Honest words build good friends.",
    ],
    "patient": [
        "Good things take time.", "Slow and steady wins in the end.",
        "Patience brings sweet rewards.",
    ],
    "friend": [
        "A good friend is the best treasure.", "You can find a friend anywhere.",
        "Friends make every day better.",
    ],
    "care": [
        "Look after the things you love.", "Take care of what you have.",
    ],
    "work": [
        "Hard work pays off.", "If you keep trying, you will get better.",
        "Practice makes it easier.",
    ],
}

# A plot is (moral, beats); each beat is one or two sentences with
#   [a|b|c]    one of the choices
#   (?text?)   text that is left out half of the time
#   {slot}     a word drawn once for the whole story, see draw_slots:
#     {H} {h}    name and species of the hero; {he} {his} {him}, capitalised {He} {His}
#     {F} {f}    the same for the friend; {fhe} {fhis} {fhim}, capitalised {Fhe}
#     {G} {g}    the same for a third character
#     {o} {oa}   the object and its adjective; {a_o} {a_oa} {a_oo} = "a ball", "a red", "a red ball"
#     {p} {p2}   two places; {home}, {food}, {w} weather, {a} the hero's adjective
PLOTS = {
    "lost": ("care", [
        "{H} had {a_oo}. [{He} took it everywhere.|It was {his} favourite thing.|{He} loved the {o} very much.|{He} played with it every day.]",
        "One {w} day, {H} went to {p}. [But when {he} looked in {his} bag, the {o} was gone!|On the way home, {he} saw that the {o} was missing.|{He} played all morning, and then {he} could not find the {o}.]",
        '[{H} felt very sad.|"Oh no!" said {H}. "Where is my {o}?"|{H} began to cry.|{H} looked up and down, but the {o} was not there.]',
        "(?{He} looked [under a bush|behind a rock|near the gate|under the bench], but found only [a leaf|a stone|some mud|an old shoe].?)",
        'Then {F} the {f} came by. ["Why are you sad?" asked {F}.|"What is wrong?" asked {F}.|"Can I help you?" said {F}.]',
        '["I lost my {oa} {o}," said {H}.|"My {o} is gone," said {H}.|{H} told {F} about the {oa} {o}.]',
        '["Let us look together," said {F}.|"Do not worry. We will find it," said {F}.|{F} had a good idea. "Let us walk back the way you came."]',
        'They looked [in the tall grass|near the water|by the big tree|along the path|next to the old wall]. [There it was!|And there was the {oa} {o}!|"I see it!" said {F}. It was the {o}!]',
        '[{H} was so happy that {he} hugged {F}.|"Thank you, {F}!" said {H}.|{H} jumped for joy and thanked {F}.] (?From that day on, {H} kept the {o} in a safe place.?)',
    ]),
    "found": ("honest", [
        "One {w} morning, {H} was walking near {p}. [Something was lying on the ground.|{He} saw something {oa} in the grass.|{He} nearly stepped on something.]",
        'It was {a_oo}! ["How lovely!" said {H}.|"Who does this belong to?" said {H}.|{H} picked it up with care.]',
        "[{H} wanted to keep it.|{H} thought about taking it home.|It would look nice in {his} room.] But {he} knew that [someone must miss it|it was not {his} own|it belonged to somebody].",
        'So {H} [asked everyone {he} met|went from door to door|put up a sign]. ["Is this your {o}?" {he} asked.|"Did you lose {a_o}?" {he} asked.]',
        '(?{G} the {g} said no. ["Mine is at home," said {G}.|"I have never seen it before," said {G}.]?)',
        'At last, {H} met {F} the {f}. [{F} looked very sad.|{F} was looking for something.] ["That is my {o}!" said {F}.|"You found my {o}!" cried {F}.]',
        '{H} gave the {o} back. [{F} smiled a big smile.|{F} was so happy that {fhe} danced.|"You are very kind," said {F}.]',
        "[To say thank you, {F} gave {H} some {food}.|{F} and {H} played with the {o} all afternoon.|{F} asked {H} to come for tea, and they ate {food}.]",
    ]),
    "share": ("share", [
        "{H} had a big basket of {food}. [{He} sat down near {p} to eat.|{He} could not wait to eat it all.|It smelled so good.]",
        "{F} the {f} came along. [{F} was very hungry.|{F} had nothing to eat.|{F} looked at the basket.]",
        '["May I have some {food}?" asked {F}.|"Your {food} smells nice," said {F}.|"I did not have breakfast," said {F}.]',
        '[At first, {H} did not want to share.|{H} held the basket tight.|{H} thought for a moment.] (?"It is mine," said {H}.?)',
        "[But then {he} saw how sad {F} was.|But then {he} heard {F}'s tummy rumble.|Then {he} remembered what it was like to be hungry.]",
        '["Here, take half," said {H}.|"Sit with me," said {H}. "There is enough for two."|{H} gave {F} the biggest piece.]',
        "They ate and laughed together. [The next day, {F} came back with a surprise: {a_oo}!|When it rained later, {F} held {fhis} umbrella over {H}.|{F} sang a song for {H}.]",
        "[{H} was glad that {he} had shared.|They were friends from then on.|{H} never felt lonely again.]",
    ]),
    "dark": ("brave", [
        "{H} was afraid of [the dark|storms|loud noises|deep water]. [Every night {he} hid under the blanket.|{He} did not tell anyone.|It made {his} heart beat fast.]",
        "One {w} night, there was a strange sound outside. [Tap, tap, tap.|Whoo, whoo!|Scratch, scratch.|Bump!] [{H} sat up in bed.|{H} held {his} breath.]",
        '["Is it a monster?" {he} whispered.|"Who is there?" asked {H}.|{H} wanted to run away.]',
        'But then {he} heard a small voice. ["Help me!" it said.|"Please, I am lost," it said.|"It is so cold out here," it said.]',
        "{H} took {a_oo} and [opened the door|went outside, step by step|walked slowly into the night]. [{His} legs were shaking.|{He} was still afraid, but {he} went on.]",
        "It was only {F} the {f}! [{F} was caught in a bush.|{F} could not find the way home.|{F} was wet and tired.]",
        "[{H} helped {F} and gave {fhim} some warm {food}.|{H} let {F} come in and sleep by the fire.|{H} took {F} by the hand and led {fhim} home.]",
        "[\"You are so brave,\" said {F}.|\"Weren't you afraid?\" asked {F}. \"A little,\" said {H}.] [After that, the night did not seem so dark.|From then on, {H} was not so afraid.]",
    ]),
    "garden": ("patient", [
        "{H} wanted to grow [a flower|a pumpkin|a sunflower|a big tree|some beans]. [{He} put a seed in the ground near {p}.|{He} found a seed and planted it by {his} door.]",
        "{He} gave it water and waited. [The first day, nothing happened.|After one day, there was only dirt.|Nothing came up.]",
        '["Why does it not grow?" asked {H}.|"Grow, seed, grow!" said {H}.|{H} wanted to dig it up and look.]',
        '{F} the {f} laughed. ["A seed needs time," said {F}.|"You must wait," said {F}. "Sun and rain will help."|"Give it water each day and do not dig," said {F}.]',
        "So {H} waited. [It rained. The sun came out.|Day after day, {he} came with water.|{He} sang to the seed every morning.] (?{He} even gave it {a_oo} to keep it company.?)",
        'Then one {w} morning, there was a tiny green leaf! ["Look! Look!" cried {H}.|{H} danced around it.]',
        "[The plant grew taller than {H}.|Soon it was as tall as the house.|It grew and grew.] [All the friends came to see it.|{F} came to see it and clapped.|They sat in its shade and ate {food}.]",
    ]),
    "race": ("patient", [
        '{F} the {f} was very proud. ["I am the fastest of all," {fhe} said every day.|"No one can beat me," said {F}.]',
        '{H} was [not very fast|slow, but {he} never gave up|small, but full of hope]. ["Let us have a race," said {H}.|"I will race you to {p}," said {H}.]',
        'Everyone came to watch. ["One, two, three, go!" called {G} the {g}.|{G} the {g} waved {a_oa} flag.]',
        '{F} ran far ahead. ["This is too easy," said {F}, and {fhe} lay down for a nap.|Then {fhe} stopped to eat some {food}.|{Fhe} stopped to show off to the crowd.]',
        "{H} kept going. [Step by step, {he} went on.|{He} did not stop once.|{His} feet hurt, but {he} did not stop.]",
        "When {F} [woke up|looked up], {H} was almost there! [{F} ran as fast as {fhe} could, but it was too late.|{F} ran and ran, but could not catch up.]",
        '{H} won the race. [{G} gave {him} {a_oo} as a prize.|Everyone cheered.|The prize was {a_oo}.] ["Well done," said {F}. "I will not boast again."|{F} shook {his} hand and said, "You won fairly."]',
    ]),
    "bake": ("help", [
        "It was {F}'s birthday, and {H} wanted to bake a cake. [But {he} had never baked before.|{He} put on {a_oa} apron.|{He} got up very early.]",
        "{H} [mixed the flour and the eggs|put everything into a big bowl|read the book from start to end]. [Flour flew everywhere.|It was a big mess.|Some of it fell on the floor.]",
        '[The first cake was burnt.|The first cake was as hard as a stone.|The first cake fell flat.] ["Oh dear," said {H}.|{H} wanted to give up.]',
        '{G} the {g} [knocked at the door|looked in at the window|came to borrow {a_o}]. ["I can help you," said {G}.|"Let us try again together," said {G}.]',
        "They [stirred and stirred|took their time|counted the eggs with care]. This time the cake was [golden and soft|perfect|big and sweet].",
        'When {F} the {f} came home, they called, "Surprise!" [{F} could not believe {fhis} eyes.|{F} laughed with joy.|{F} ate three big pieces.]',
        '["This is the best birthday ever," said {F}.|They sang and danced until the moon came up.|{H} also gave {F} {a_oo}.]',
    ]),
    "stuck": ("help", [
        "One {w} day, {H} was playing with {a_oo} near {p}. [Suddenly, the wind blew hard.|{He} threw it up high.|{He} tossed it a little too far.]",
        "The {o} [flew up into a tall tree|got stuck on a branch|landed on a roof]. [{H} jumped, but {he} could not reach it.|{H} tried to climb, but {he} slipped.]",
        '["Oh no, my {o}!" cried {H}.|"What shall I do?" said {H}.]',
        '{F} the {f} was watching. ["I can push it with a stick," said {F}.|"I can climb very well," said {F}.|"Stand on my back," said {F}.]',
        '(?They tried once, but it did not work. "Let us try again," said {H}.?)',
        "They worked together, and [the {o} came down|at last {H} could reach the {o}|down came the {o}]! [Plop!|It was not even broken.|{H} caught it with both hands.]",
        '["Thank you," said {H}. "Do you want to play with me?"|"We did it!" they shouted.] [They played until the sun went down.|They took turns all afternoon.]',
    ]),
    "broken": ("honest", [
        '{H} was playing with {a_o} inside the house. ["Do not play in here," {F} had said.|{He} knew that {he} should play outside.]',
        "Crash! [The {oa} vase fell down and broke.|{F}'s favourite {oa} cup fell off the table.|The window broke.]",
        '{H} was scared. [{He} hid the pieces under the bed.|{He} thought about running away.|"Maybe nobody will see it," {he} thought.]',
        'Soon {F} the {f} came in. ["What happened here?" asked {F}.|"What was that noise?" asked {F}.]',
        "[{H} looked at the floor.|{H}'s face turned red.|{H} wanted to say that the wind did it.] But then {he} said, \"[I did it. I am sorry.|It was me. I am very sorry.|I broke it. Please do not be angry.]\"",
        '{F} was quiet for a moment. Then {fhe} smiled. ["Thank you for telling the truth," said {F}.|"I am glad that you told me," said {F}.]',
        "[They cleaned up together.|They fixed it with some glue.|{H} helped {F} sweep the floor.] [Then they had some {food}.|After that, {H} played outside.|{H} felt much better.]",
    ]),
    "learn": ("work", [
        "{H} wanted to learn how to [swim|dance|sing|ride a bike|play the flute|skate|read]. [But it was very hard.|All {his} friends could do it, but not {H}.]",
        'The first time {he} tried, [{he} fell down|it went all wrong|everyone laughed]. ["I will never learn it," said {H}.|{H} went home and sat in the corner.]',
        '{F} the {f} came to see {him}. ["I fell down a hundred times before I could do it," said {F}.|"Try a little every day," said {F}.|"Let me show you," said {F}.]',
        "So {H} tried again [at {p}|the next morning|when no one was looking]. [It was a bit better.|{He} fell only twice.|{He} was still slow.]",
        '(?{F} put {a_oo} at the end of the path. "Get it, and it is yours," said {F}.?)',
        "Every day {he} tried again. [On the seventh day, {he} could do it!|And then, one {w} day, it worked!|After many days, it became easy.]",
        '["Look at me!" shouted {H}.|{F} clapped and cheered.|{H} was so proud.] [Now {H} helps others to learn it too.|That night {he} fell asleep with a smile.]',
    ]),
    "newfriend": ("friend", [
        "{H} had just moved to {p}. [{He} did not know anyone.|It was quiet there, and {he} felt lonely.|{He} missed {his} old home.]",
        "Every day, {he} sat [by the window|on the steps|under a tree] with {his} {oa} {o}. [Nobody came to play.|{He} talked to the {o}, but it did not answer.]",
        "One {w} day, {F} the {f} walked by. [{F} was carrying a heavy bag of {food}.|{F} was looking for someone to play with.|{F} had lost the way.]",
        '["Hello," said {H} in a soft voice.|"Hello! What is your name?" asked {F}.|"Do you need help?" asked {H}.] ["I am {H}," said {H}.|"My name is {F}," said {F}.]',
        "[They talked for a long time.|They found out that they both liked {food}.|{H} showed {F} the {o}, and {F} loved it.]",
        '"[Do you want to be my friend?|Shall we play tomorrow, too?|May I see your home?]" asked {F}. ["Yes, please!" said {H}.|{H} nodded and smiled.]',
        "[Now they play together every day.|From that day on, {H} was not lonely.|They built a little house near {p} and played there all summer.]",
    ]),
    "treasure": ("friend", [
        "{H} found an old map [under the bed|in a bottle|inside a book]. [It showed the way to a treasure!|There was a big red X on it.]",
        '{He} ran to {F} the {f}. ["Look what I found!" said {H}.|"Will you come with me?" asked {H}.] ["Of course!" said {F}.|"What an adventure!" said {F}.]',
        "They walked past {p} and [over a bridge|up a steep hill|through a dark cave|across a stream]. [It was a long way.|Their feet were tired.|They stopped to eat some {food}.]",
        "(?On the way they met {G} the {g}, who [showed them the right path|told them a joke|gave them some water].?)",
        "At last they came to the place on the map. [They dug and dug.|They looked under a big stone.|They dug with {a_oo}.] [Clunk! There was a box.|And there it was: an old box.]",
        'Inside the box was {a_oo}. [It was not gold, but it was beautiful.|"Is that all?" asked {F}.|There was also a note.] ["The real treasure is the friend who came with you," said the note.|{H} laughed. "We had so much fun getting here," {he} said.]',
        "[They went home happy.|They took turns with the {o}, one day each.|They put the {o} where all their friends could see it.]",
    ]),
    "snow": ("help", [
        'One {w} winter day, {p} was white with snow. [{H} put on {a_oa} coat and ran outside.|"Snow! Snow!" shouted {H}.]',
        "{He} built [a snowman|a small house of snow|a snow bear]. [It had a carrot for a nose.|It wore {a_oa} hat.]",
        'Then {H} saw {F} the {f}, who was [cold and shaking|stuck in the deep snow|looking for food]. ["Brr," said {F}.|"I am so cold," said {F}.]',
        "[{H} gave {F} {his} own scarf.|{H} pulled {F} out of the snow.|\"Come with me,\" said {H}.] They went to {H}'s home, [where a fire was burning|where it was nice and warm].",
        "[They drank hot milk and ate {food}.|{F} had a bowl of hot soup.|They sat by the fire and told stories.] [Soon {F} felt warm again.|{F} stopped shaking.]",
        '["You saved me," said {F}.|"How can I thank you?" asked {F}.] ["Just be my friend," said {H}.|"You can help me build another one," said {H}.]',
        "[And so they went out and built the biggest snowman ever.|In spring, {F} brought {H} the first flower.]",
    ]),
    "bridge": ("help", [
        "There was a [wide|deep|fast] river near {p}. [{H} wanted to cross it, but there was no bridge.|On the other side there was a lot of {food}.]",
        "{H} tried to build a bridge alone. [The wood was too heavy.|The stones rolled away.|It fell into the water.]",
        '{F} the {f} said, ["I can carry the wood."|"I am strong. Let me help."] {G} the {g} said, ["I can tie the ropes."|"I can bring some food."|"I know how to build."]',
        "They worked [all day|for three days|until night]. [{H} held the light.|{H} sang to keep them happy.|{F} carried, {G} tied, and {H} counted the stones.]",
        "When the bridge was done, [everyone walked across|they hung {a_oo} on it|all the neighbours cheered].",
        '["None of us could do it alone," said {H}.|"We make a good team," said {F}.|"Let us build a boat next!" said {G}.]',
    ]),
}
OPENINGS = [
    "Once upon a time, there was a {a} {h} named {H}. ",
    "There once was a {a} {h} called {H}. ",
    "{H} was a {a} {h}. ",
    "Long ago, a {a} {h} named {H} lived in {home} near {p2}. ",
    "{H} the {h} lived in {home}. {He} was very {a}. ",
    "In {home} near {p2}, there lived a {a} {h} named {H}. ",
]
ENDINGS = [
    "(?{moral}?)",
    "{moral}",
    "The end.",
    "{moral} The end.",
    "And they lived happily ever after.",
    "",
]

# Tables for the short answers.
NUMBER_WORDS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
]
DAYS = [
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
]
SOUNDS = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink",
    "horse": "neigh", "owl": "hoot", "frog": "ribbit", "bee": "buzz", "lion": "roar",
    "snake": "hiss", "mouse": "squeak", "wolf": "howl", "hen": "cluck",
}
OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "fast": "slow", "happy": "sad", "day": "night",
    "old": "new", "open": "closed", "full": "empty", "light": "dark", "wet": "dry",
    "hard": "soft", "high": "low", "left": "right", "long": "short", "near": "far",
    "early": "late", "loud": "quiet", "strong": "weak", "first": "last",
}
COLOUR_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "coal": "black",
    "a strawberry": "red", "a carrot": "orange", "milk": "white", "a frog": "green",
    "the sun": "yellow",
}
LISTS = {
    "animals": [
        "a fox", "a bear", "a cat", "a dog", "a duck", "an owl", "a frog", "a horse", "a mouse",
        "a lion",
    ],
    "colours": COLOURS,
    "fruits": [
        "apples", "pears", "plums", "berries", "cherries", "grapes", "bananas", "lemons",
        "oranges", "peaches",
    ],
    "days": DAYS,
    "months": MONTHS,
    "numbers": NUMBER_WORDS[1:11],
}
GLOSSARY = [
    ("KV cache", "The KV cache keeps the keys and values of earlier tokens, so that each new token needs only one step of work."),
    ("paged attention", "Paged attention stores the KV cache in small blocks of equal size, so that memory is used without big gaps."),
    ("a block table", "A block table says which memory block holds each part of a request's KV cache."),
    ("continuous batching", "Continuous batching lets new requests join the batch at every step, so that nobody waits for the slowest one."),
    ("prefill", "Prefill reads all the tokens of the prompt at once and fills the KV cache."),
    ("decode", "Decode makes one new token for each request at every step."),
    ("a token", "A token is a small piece of text. The model reads and writes tokens."),
    ("a scheduler", "The scheduler decides which requests run in the next step, and how many tokens each of them gets."),
    ("prefix caching", "Prefix caching reuses the blocks of a prompt that was seen before, so that the same work is not done twice."),
    ("preemption", "Preemption takes the blocks of one request away when memory is full. That request starts again later."),
    ("chunked prefill", "Chunked prefill cuts a long prompt into parts, so that other requests can go on between them."),
    ("a logit", "A logit is the score that the model gives to a token before the softmax."),
    ("sampling", "Sampling picks the next token at random, where likely tokens are picked more often."),
    ("greedy decoding", "Greedy decoding always picks the token with the highest score."),
    ("temperature", "Temperature makes the choice of tokens more even when it is high, and more certain when it is low."),
    ("top-p", "Top-p keeps only the most likely tokens whose chances add up to p."),
    ("an attention head", "An attention head looks at earlier tokens and decides which of them matter now."),
    ("an embedding", "An embedding is a list of numbers that stands for a token."),
    ("a block", "A block is a small piece of KV cache memory that holds a fixed number of tokens."),
    ("the block pool", "The block pool keeps the free blocks and hands them out to requests."),
    ("an end token", "The end token tells the engine that the answer is complete, so the request can stop."),
    ("throughput", "Throughput is the number of tokens that the engine makes per second for all requests together."),
    ("latency", "Latency is the time that one request has to wait."),
    ("a softmax", "A softmax turns scores into chances that add up to one."),
    ("a GPU", "A GPU is a chip that does many small sums at the same time."),
    ("speculative decoding", "Speculative decoding guesses several tokens with a cheap model and checks them all in one step."),
    ("a transformer", "A transformer is a model made of layers with attention and small networks."),
    ("a prompt", "A prompt is the text that you give to the model."),
    ("a request", "A request is one prompt and the answer that grows from it."),
    ("a waiting queue", "The waiting queue holds the requests that are not running yet."),
]
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a friendly storyteller for small children. Use short words.",
    "You answer in one short sentence.",
    "You are the tour guide of a tiny inference engine.",
]
SMALL_TALK = [
    ("Who are you?", "I am a very small language model. I can tell stories and answer a few simple questions."),
    ("Hello!", "Hello! Do you want to hear a story?"),
    ("Hi!", "Hi! How can I help you?"),
    ("Thank you!", "You are welcome!"),
    ("How are you?", "I am fine, thank you."),
    ("What can you do?", "I can tell short stories, count, and answer simple questions about how language models are served."),
]
# fmt: on

PRONOUNS = {"he": ("he", "his", "him"), "she": ("she", "her", "her")}
PLOTS_WITH_OBJECT = ["lost", "found", "stuck", "treasure", "newfriend", "garden"]


# ---- stories


def with_article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def capitalise(text):
    """Upper-case the first letter and leave the rest alone (str.capitalize lowers it)."""
    return text[0].upper() + text[1:]


def expand(rng, template):
    """Resolve the [a|b|c] choices (innermost first), then the (?optional?) parts."""
    while match := re.search(r"\[([^\[\]]*)\]", template):
        chosen = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + chosen + template[match.end() :]
    while match := re.search(r"\(\?(.*?)\?\)", template):
        kept = match.group(1) if rng.random() < 0.5 else ""
        template = template[: match.start()] + kept + template[match.end() :]
    return re.sub(r"\s+", " ", template).strip()


def draw_character(rng, used, wanted=None):
    """Draw (species, pronoun, name); `used` keeps species and names apart within a story."""
    while True:
        species, pronoun = wanted or rng.choice(HEROES)
        if species in used:
            wanted = None
            continue
        if pronoun == "it":
            pronoun = rng.choice(["he", "she"])
        name = rng.choice(SHE_NAMES if pronoun == "she" else HE_NAMES)
        if name in used:
            continue
        used |= {species, name}
        return species, pronoun, name


def draw_slots(rng, hero=None, wanted_object=None):
    """Draw the words that stay the same through one story."""
    used = set()
    species, pronoun, name = draw_character(rng, used, hero)
    friend_species, friend_pronoun, friend_name = draw_character(rng, used)
    third_species, _, third_name = draw_character(rng, used)
    thing = wanted_object or rng.choice(OBJECTS)
    look = rng.choice(OBJECT_ADJECTIVES)
    place = rng.choice(PLACES)
    slots = {
        "h": species,
        "H": name,
        "f": friend_species,
        "F": friend_name,
        "g": third_species,
        "G": third_name,
        "o": thing,
        "oa": look,
        "p": place,
        "p2": rng.choice([other for other in PLACES if other != place]),
        "home": rng.choice(HOMES),
        "food": rng.choice(FOODS),
        "w": rng.choice(WEATHERS),
        "a": rng.choice(ADJECTIVES),
        "a_o": with_article(thing),
        "a_oo": with_article(f"{look} {thing}"),
        "a_oa": with_article(look),
    }
    slots["he"], slots["his"], slots["him"] = PRONOUNS[pronoun]
    slots["fhe"], slots["fhis"], slots["fhim"] = PRONOUNS[friend_pronoun]
    for slot in ("he", "his", "fhe"):
        slots[slot.title()] = slots[slot].title()
    return slots


def short_beats(beats):
    """Keep the first two beats, the first that brings the friend in, and the last one."""
    friend_enters = [index for index, beat in enumerate(beats) if "{F} the {f}" in beat][:1]
    return [beats[index] for index in sorted({0, 1, *friend_enters, len(beats) - 1})]


def make_body(rng, plot, slots, size):
    """Tell one plot; returns (text, moral)."""
    moral, beats = PLOTS[plot]
    if size == "short":
        beats = short_beats(beats)
    told = [expand(rng, beat.format_map(slots)) for beat in beats]
    return " ".join(part for part in told if part), rng.choice(MORALS[moral])


def split_paragraphs(text):
    """Break a text in two paragraphs at a sentence near its middle."""
    sentences = re.split(r'(?<=[.!?"]) (?=[A-Z"])', text)
    middle = max(1, len(sentences) // 2)
    return " ".join(sentences[:middle]) + "\n\n" + " ".join(sentences[middle:])


def fix_articles(text):
    return re.sub(r"\ba (?=[aeiou])", "an ", text).replace("an uni", "a uni")


def make_story(rng, hero=None, wanted_object=None, size=None):
    """Return (story, slots). A wanted object is sure to appear in the story."""
    size = size or rng.choice(["long", "long", "long", "short"])
    slots = draw_slots(rng, hero, wanted_object)
    plot = rng.choice(list(PLOTS))
    if wanted_object:
        plot = rng.choice(PLOTS_WITH_OBJECT)
    body, moral = make_body(rng, plot, slots, size)
    if wanted_object and wanted_object not in body:
        return make_story(rng, hero, wanted_object, size)
    opening = expand(rng, rng.choice(OPENINGS).format_map(slots))
    ending = expand(rng, rng.choice(ENDINGS).replace("{moral}", moral))
    if rng.random() < 0.5 and size == "long":
        body = split_paragraphs(body)
    return fix_articles(f"{opening} {body} {ending}".strip()), slots


# ---- short answers: each function returns (question, answer)


def ask_sound(rng):
    animal = rng.choice(list(SOUNDS))
    name, sound = with_article(animal), SOUNDS[animal]
    question = rng.choice([f"What does {name} say?", f"What sound does {name} make?"])
    return question, rng.choice([f"{capitalise(name)} says {sound}.", f"{capitalise(sound)}!"])


def ask_opposite(rng):
    word, opposite = rng.choice(list(OPPOSITES.items()))
    if rng.random() >= 0.5:
        word, opposite = opposite, word
    question = rng.choice([f"What is the opposite of {word}?", f"Tell me the opposite of {word}."])
    answers = [f"The opposite of {word} is {opposite}.", f"{capitalise(opposite)}."]
    return question, rng.choice(answers)


def ask_colour(rng):
    thing = rng.choice(list(COLOUR_OF))
    colour = COLOUR_OF[thing]
    answers = [f"{capitalise(thing)} is {colour}.", f"{capitalise(colour)}."]
    return f"What colour is {thing}?", rng.choice(answers)


def count_answer(first, last):
    return ", ".join(map(str, range(first, last + 1))) + "."


def ask_count(rng):
    first = rng.randint(1, 20)
    last = first + rng.randint(2, 25)
    ask = rng.choice(["Count", "Please count"])
    return f"{ask} from {first} to {last}.", count_answer(first, last)


def ask_sum(rng):
    left, right = rng.randint(0, 9), rng.randint(0, 9)
    question = rng.choice([f"What is {left} + {right}?", f"What is {left} plus {right}?"])
    answers = [f"{left} plus {right} is {left + right}.", f"{left + right}."]
    return question, rng.choice(answers)


def ask_next_day(rng):
    index = rng.randrange(7)
    day, following = DAYS[index], DAYS[(index + 1) % 7]
    return f"Which day comes after {day}?", f"{following} comes after {day}."


def ask_next_month(rng):
    index = rng.randrange(12)
    month, following = MONTHS[index], MONTHS[(index + 1) % 12]
    return f"Which month comes after {month}?", f"{following} comes after {month}."


def ask_greeting(rng):
    name = rng.choice(SHE_NAMES + HE_NAMES)
    question = rng.choice([f"Say hello to {name}.", f"Greet {name}."])
    return question, rng.choice([f"Hello, {name}!", f"Hello, {name}! How are you today?"])


def ask_list(rng):
    kind = rng.choice(list(LISTS))
    count = rng.randint(2, 6)
    ordered = kind in ("days", "months", "numbers")
    items = LISTS[kind][:count] if ordered else rng.sample(LISTS[kind], count)
    answer = capitalise(", ".join(items[:-1]) + " and " + items[-1] + ".")
    return f"Name {NUMBER_WORDS[count]} {kind}.", answer


def ask_small_talk(rng):
    return rng.choice(SMALL_TALK)


def ask_glossary(rng):
    term, answer = rng.choice(GLOSSARY)
    questions = [
        f"What is {term}?",
        f"Explain {term}.",
        f"What does {term} mean?",
        f"Tell me about {term}.",
    ]
    return rng.choice(questions), answer


QUESTIONS = [
    ask_sound,
    ask_opposite,
    ask_colour,
    ask_count,
    ask_count,
    ask_sum,
    ask_next_day,
    ask_next_month,
    ask_greeting,
    ask_list,
    ask_small_talk,
    ask_glossary,
    ask_glossary,
]


# ---- documents


def draw_system_prompt(rng):
    return rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.5 else None


def format_chat(system, user, assistant):
    """The chat markup that the tokenizer's chat template writes, with the answer filled in."""
    start = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return (
        f"{start}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{assistant}<|im_end|>"
    )


def make_story_chat(rng):
    """A user asks for a story about a species, at times with an object or by the hero's name."""
    size = rng.choice([None, "short", "long"])
    hero = rng.choice(HEROES)
    wanted_object = rng.choice(OBJECTS) if rng.random() < 0.6 else None
    story, slots = make_story(rng, hero, wanted_object, size or "long")
    size_word = f"{size} " if size else ""
    ask = rng.choice(["Tell me", "Write", "Please tell", "I want"])
    about = with_article(slots["h"])
    if wanted_object:
        about += " and " + with_article(wanted_object)
    if rng.random() < 0.2 and not wanted_object:
        ask, about = "Tell me", f"{slots['H']} the {slots['h']}"
    request = f"{ask} a {size_word}story about {about}."
    return format_chat(draw_system_prompt(rng), request, story)


def make_document(rng):
    kind = rng.random()
    if kind < 0.45:
        return make_story(rng)[0]
    if kind < 0.75:
        return make_story_chat(rng)
    question, answer = rng.choice(QUESTIONS)(rng)
    if kind < 0.93:
        return format_chat(draw_system_prompt(rng), question, answer)
    return f"Question: {question}\nAnswer: {answer}"


def write_documents(path, count, seed):
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for _ in range(count):
            file.write(json.dumps(make_document(rng)) + "\n")
    print(f"{path}: {count} documents, seed {seed}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("data", type=Path, help="folder to write the .jsonl files to")
    parser.add_argument("--documents", type=int, default=240_000, help="training documents")
    parser.add_argument("--seed", type=int, default=1, help="seed of the training documents")
    parser.add_argument(
        "--validation-documents", type=int, default=2_000, help="validation documents"
    )
    parser.add_argument(
        "--validation-seed", type=int, default=2, help="seed of the validation documents"
    )
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    arguments.data.mkdir(parents=True, exist_ok=True)
    write_documents(arguments.data / "train.jsonl", arguments.documents, arguments.seed)
    write_documents(
        arguments.data / "validation.jsonl",
        arguments.validation_documents,
        arguments.validation_seed,
    )


if __name__ == "__main__":
    main()
