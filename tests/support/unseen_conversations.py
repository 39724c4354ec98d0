"""Conversations in free words, kept apart from those that rules were tuned on before.

Each domain has updates and pairs of similar but different statements. Rules may be tuned on `TUNED`, and
`HELD_OUT` may only be measured.
"""

from collections.abc import Sequence

from tests.support.free_conversations import FreeConversation as Talk

THEATRE = (
    Talk(
        "premiere",
        (
            "We open the play on 14 November at the Lindenhof.",
            "The lighting rig is rented for 900 euros.",
            "Bad news from the venue, opening night slides to 28 November.",
        ),
        ("28 November", "900 euros"),
        ("14 November",),
    ),
    Talk(
        "lead",
        (
            "Oskar Winther plays the king.",
            "Rehearsals take place in hall 3.",
            "Oskar broke his ankle, Bela Szabo steps in as the king.",
        ),
        ("Bela Szabo", "hall 3"),
        ("Winther plays",),
    ),
    Talk(
        "posters",
        (
            "Print 400 posters for the premiere.",
            "I talked to the printer, 250 posters will do.",
        ),
        ("250 posters",),
        ("400 posters",),
    ),
    Talk(
        "interval",
        (
            "The interval lasts 20 minutes.",
            "The bar complained. Let the interval run for 30 minutes.",
            "The prologue lasts 6 minutes.",
        ),
        ("30 minutes", "6 minutes"),
        ("20 minutes",),
    ),
    Talk(
        "ticket-prices",
        (
            "Stalls tickets cost 32 euros.",
            "Balcony tickets cost 21 euros.",
            "Students pay 11 euros in the balcony.",
        ),
        ("32 euros", "21 euros", "11 euros"),
    ),
)
BEES = (
    Talk(
        "hives",
        (
            "I keep 7 hives behind the barn.",
            "One colony split last week, so that makes 8 hives behind the barn.",
        ),
        ("8 hives",),
        ("7 hives",),
    ),
    Talk(
        "treatment",
        (
            "Varroa treatment starts on August 2.",
            "The vet wants us to treat for varroa from August 9.",
        ),
        ("August 9",),
        ("August 2",),
    ),
    Talk(
        "buyer",
        (
            "The honey is sold to Feinkost Adler.",
            "Feinkost Adler closed down, the honey goes to Markthalle Süd.",
            "The wax is sold to Kerzen Roth.",
        ),
        ("Markthalle Süd", "Kerzen Roth"),
        ("sold to Feinkost Adler",),
    ),
    Talk(
        "syrup",
        (
            "Mix the syrup with 3 kg of sugar.",
            "3 kg was far too sweet, 2 kg of sugar in the syrup is plenty.",
        ),
        ("2 kg",),
        ("syrup with 3 kg",),
    ),
    Talk(
        "queens",
        (
            "The queen in hive 2 is marked blue and was born in 2023.",
            "The queen in hive 5 is marked green and was born in 2024.",
            "Hive 2 weighs 31 kg.",
        ),
        ("blue", "green", "31 kg"),
    ),
)
CAR = (
    Talk(
        "garage",
        (
            "Bring the van to Autohaus Petri for the inspection.",
            "Petri is fully booked. Garage Nowak does the inspection of the van.",
        ),
        ("Garage Nowak",),
        ("to Autohaus Petri",),
    ),
    Talk(
        "quote",
        (
            "They quoted 640 euros for the gearbox.",
            "The invoice for the gearbox came in at 715 euros.",
            "They quoted 180 euros for the exhaust.",
        ),
        ("715 euros", "180 euros"),
        ("640 euros",),
    ),
    Talk(
        "tyres",
        (
            "Front tyres need 2.3 bar.",
            "Rear tyres need 2.8 bar.",
            "With the trailer the rear tyres need 3.1 bar.",
        ),
        ("2.3 bar", "2.8 bar", "3.1 bar"),
    ),
    Talk(
        "plate",
        (
            "Our licence plate is HB-KX 4471.",
            "The van is registered in Bremen.",
            "I looked it up: the licence plate reads HB-KX 4417.",
        ),
        ("4417", "Bremen"),
        ("4471",),
    ),
    Talk(
        "pickup",
        (
            "I collect the van on Thursday afternoon.",
            "The part is late. It will be Monday before I can collect the van.",
        ),
        ("Monday",),
        ("Thursday",),
    ),
)
PODCAST = (
    Talk(
        "guest",
        (
            "Our guest for episode 12 is Mina Farahani.",
            "Mina Farahani had to drop out; episode 12 will be with Jorge Pinto.",
            "Our guest for episode 13 is Lena Voss.",
        ),
        ("Jorge Pinto", "Lena Voss"),
        ("is Mina Farahani",),
    ),
    Talk(
        "length",
        (
            "Episodes run about 45 minutes.",
            "Listeners find that too long. From episode 20 we aim for 30 minutes an episode.",
        ),
        ("30 minutes",),
        ("45 minutes",),
    ),
    Talk(
        "sponsor",
        (
            "The sponsor pays 300 euros per episode.",
            "We renegotiated, the sponsor pays 380 euros per episode.",
            "The editor gets 90 euros per episode.",
        ),
        ("380 euros", "90 euros"),
        ("300 euros",),
    ),
    Talk(
        "host",
        (
            "Files are uploaded to cast.example.net.",
            "We left cast.example.net, all files are uploaded to audio.example.org.",
        ),
        ("audio.example.org",),
        ("uploaded to cast.example.net",),
    ),
    Talk(
        "microphones",
        (
            "Tamara speaks into the dynamic microphone at 48 dB.",
            "Ruben speaks into the ribbon microphone at 60 dB.",
            "The intro music is capped at 12 seconds.",
        ),
        ("48 dB", "60 dB", "12 seconds"),
    ),
)
ROBOTICS = (
    Talk(
        "arm",
        (
            "The arm lifts at most 4 kg.",
            "After the motor swap the arm lifts 6 kg.",
            "The gripper opens 85 mm.",
        ),
        ("6 kg", "85 mm"),
        ("4 kg",),
    ),
    Talk(
        "demo",
        (
            "The demo for the board is on 3 February.",
            "The board asked for a later slot, we show the demo on 17 February.",
        ),
        ("17 February",),
        ("3 February",),
    ),
    Talk(
        "firmware",
        (
            "The left wheel controller runs firmware 1.8.2.",
            "The right wheel controller runs firmware 1.9.0.",
            "I flashed the left wheel controller with firmware 1.9.3.",
        ),
        ("1.9.0", "1.9.3"),
        ("1.8.2",),
    ),
    Talk(
        "lead-engineer",
        (
            "Questions about the sensors go to Femke de Wit.",
            "Femke left the company. Ask Arturo Leal about the sensors.",
        ),
        ("Arturo Leal",),
        ("Femke de Wit",),
    ),
    Talk(
        "batteries",
        (
            "The small battery charges in 40 minutes.",
            "The large battery charges in 95 minutes.",
            "We ordered 6 spare fuses.",
        ),
        ("40 minutes", "95 minutes", "6 spare"),
    ),
)
MUSEUM = (
    Talk(
        "loan",
        (
            "The vase is on loan until 30 April.",
            "Vienna agreed to leave us the vase until 15 June.",
        ),
        ("15 June",),
        ("30 April",),
    ),
    Talk(
        "room",
        (
            "The maps hang in gallery 2.",
            "The coins are shown in gallery 5.",
            "It is too bright there, so we hang the maps in gallery 7.",
        ),
        ("gallery 7", "gallery 5"),
        ("gallery 2",),
    ),
    Talk(
        "insurance",
        (
            "The insurance covers 80,000 euros.",
            "The insurer wrote: cover stands at 120,000 euros.",
        ),
        ("120,000",),
        ("80,000",),
    ),
    Talk(
        "curator",
        (
            "Helga Stromberg writes the catalogue.",
            "Helga Stromberg is on leave until autumn, Pavel Dvorak writes the catalogue.",
            "Noor Hassan designs the catalogue.",
        ),
        ("Pavel Dvorak", "Noor Hassan"),
        ("Stromberg writes",),
    ),
    Talk(
        "climate",
        (
            "Keep the paper room at 50% humidity.",
            "Keep the textile room at 55% humidity.",
            "The paper room is open from 10:00.",
        ),
        ("50%", "55%", "10:00"),
    ),
)
SAILING = (
    Talk(
        "start",
        (
            "The regatta starts at 09:30.",
            "Because of the tide the regatta begins at 11:00.",
        ),
        ("11:00",),
        ("09:30",),
    ),
    Talk(
        "berth",
        (
            "Our boat lies at berth C14.",
            "The harbour master gave us a quieter place, our boat lies at berth F02.",
        ),
        ("F02",),
        ("C14",),
    ),
    Talk(
        "skipper",
        (
            "Nils Aker is the skipper on Saturday.",
            "Joana Reis is the skipper on Sunday.",
            "Nils hurt his back. Saturday's skipper will be Tomas Eide.",
        ),
        ("Tomas Eide", "Joana Reis"),
        ("Nils Aker is",),
    ),
    Talk(
        "fee",
        (
            "The entry fee is 75 euros per boat.",
            "The deposit is 200 euros per boat.",
            "The club dropped the entry fee to 60 euros per boat.",
        ),
        ("60 euros", "200 euros"),
        ("75 euros",),
    ),
    Talk(
        "sails",
        (
            "The main sail has 24 square metres.",
            "The storm sail has 9 square metres.",
            "Order 3 life jackets for the children.",
            "We found two in the shed, 1 life jacket is enough to order.",
        ),
        ("24 square", "9 square"),
        ("3 life jackets",),
    ),
)
CHOIR = (
    Talk(
        "rehearsal",
        (
            "We rehearse every Wednesday at 19:30.",
            "The hall is taken on Wednesdays, so we rehearse every Monday at 19:30.",
        ),
        ("Monday",),
        ("every Wednesday",),
    ),
    Talk(
        "conductor",
        (
            "The concert is conducted by Irma Solheim.",
            "Irma is ill; the concert will be conducted by Diego Prado.",
        ),
        ("Diego Prado",),
        ("by Irma Solheim",),
    ),
    Talk(
        "singers",
        (
            "We have 9 altos and 6 tenors.",
            "Two altos joined yesterday, that gives us 11 altos.",
            "The basses practise in room 8.",
        ),
        ("11 altos", "room 8"),
        (),
    ),
    Talk(
        "scores",
        (
            "The scores for the mass cost 14 euros each.",
            "The scores for the motets cost 6 euros each.",
            "I got a discount, the scores for the mass are 12 euros each.",
        ),
        ("12 euros", "6 euros"),
        ("14 euros",),
    ),
    Talk(
        "tour",
        (
            "The coach to Ghent holds 49 people.",
            "The coach to Delft holds 32 people.",
            "Rent a second organ for the tour.",
            "The church has one, so no second organ.",
        ),
        ("49 people", "32 people"),
        ("Rent a second organ",),
    ),
)
TUNED: Sequence[Sequence[Talk]] = (THEATRE, BEES, CAR, PODCAST)
HELD_OUT: Sequence[Sequence[Talk]] = (ROBOTICS, MUSEUM, SAILING, CHOIR)
